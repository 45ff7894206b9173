"""The self-test of the instrument: it passes here, and it fails where something is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_up_machine import cpu_environment, cuda_environment

from experiment.children.selfcheck import GRANDCHILD_BYTES, ROUNDS, SPIKE_BYTES, Moment
from experiment.commands.main import main
from experiment.events import Channel, Check, Reading, SamplerCost, Scope, Stage
from experiment.machine.environment import Environment, NvmlFacts
from experiment.selfcheck.memory import KNOWN_BYTES, cost_check, known_amount_checks, process_checks
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import Message, message

ROOT = Path(__file__).parent.parent
MIB = 2**20
BASE = 400 * MIB
HOST = (Channel.RSS, Channel.USS, Channel.PSS)


def reading(channel: Channel, moment: Moment, size: int | None) -> Reading:
    reason = message("memory.process_gone") if size is None else None
    return Reading(
        arm="selfcheck", channel=channel, scope=Scope.TREE, bytes=size, reason=reason,
        stage=Stage.REQUEST_DONE, request=moment,
    )  # fmt: skip


def rounds(channel: Channel, held: list[int | None], freed: list[int | None]) -> list[Reading]:
    found = []
    for more, less in zip(held, freed, strict=True):
        found += [
            reading(channel, Moment.EMPTY, BASE),
            reading(channel, Moment.HELD, more),
            reading(channel, Moment.FREED, less),
        ]
    return found


def honest(channel: Channel) -> list[Reading]:
    return rounds(channel, [BASE + KNOWN_BYTES] * ROUNDS, [BASE] * ROUNDS)


def verdicts(checks: list[Check]) -> dict[str, bool | None]:
    """By name; each text is rendered once in every language."""
    for lang in LANGUAGES:
        assert all(Translator(lang).message(check.text) for check in checks)
    assert len({check.check for check in checks}) == len(checks)
    return {check.check: check.passed for check in checks}


def known(
    readings: list[Reading], environment: Environment | None = None
) -> dict[str, bool | None]:
    device = "cuda" if environment else "cpu"
    return verdicts(known_amount_checks(readings, environment or cpu_environment(), device))


def system(readings: list[Reading]) -> list[Reading]:
    """The same of the whole machine, where twice as much moved."""
    held: list[int | None] = [BASE + 2 * KNOWN_BYTES] * ROUNDS
    return [*readings, *rounds(Channel.SYSTEM, held, [BASE] * ROUNDS)]


def test_channels_that_see_all_pass() -> None:
    readings = system([r for channel in HOST for r in honest(channel)])
    assert known(readings) == {
        **{f"{what}.{c.value}": True for c in HOST for what in ("memory", "memory.freed")},
        "memory.system.used": None,  # others move it
    }


def test_one_spoilt_round_is_outvoted_and_two_are_not() -> None:
    good = BASE + KNOWN_BYTES
    others = [r for channel in (Channel.USS, Channel.PSS) for r in honest(channel)]
    spoilt = rounds(Channel.RSS, [good, good + 75 * MIB, good], [BASE] * 3)
    assert all(value is not False for value in known(system(spoilt + others)).values())
    worse = rounds(Channel.RSS, [good, good + 75 * MIB, good + 75 * MIB], [BASE] * 3)
    assert known(worse + others)["memory.process.rss"] is False


@pytest.mark.parametrize("hidden", [True, False])
def test_what_others_draw_meanwhile_on_a_gpu_is_not_judged(hidden: bool) -> None:
    """If the driver hides the process, torch's own figure shows that the check did what it says."""
    reason = message("memory.nvml_pid_namespace") if hidden else None
    environment = cuda_environment(NvmlFacts(reason=None, process_reason=reason))
    own = [Channel.TORCH_ALLOCATED, Channel.TORCH_RESERVED]
    own += [] if hidden else [Channel.NVML_PROCESS]
    drawn: list[int | None] = [SEEN + 12 * MIB * (1 + place) for place in range(ROUNDS)]
    readings = [r for channel in own for r in honest(channel)]
    for channel in (Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO):
        readings += rounds(channel, drawn, [BASE] * ROUNDS)
    found = known(readings, environment)
    assert found["memory.nvml.device"] is found["memory.cuda.mem_get_info"] is None
    assert found["memory.torch.reserved"] is True
    wrong = [r for r in readings if r.channel not in own[1:]]
    for channel in own[1:]:
        wrong += rounds(channel, [BASE] * ROUNDS, [BASE] * ROUNDS)
    assert known(wrong, environment)["memory.nvml.device"] is False
    # What differs alike in every round is not what others draw.
    alike = [r for channel in own for r in honest(channel)]
    alike += rounds(Channel.NVML_DEVICE, [SEEN + 12 * MIB] * ROUNDS, [BASE] * ROUNDS)
    assert known(alike, environment)["memory.nvml.device"] is (False if hidden else None)


SEEN = BASE + KNOWN_BYTES


@pytest.mark.parametrize(
    ("held", "freed", "failing"),
    [
        ([BASE + round(KNOWN_BYTES * 0.97)] * 3, [BASE] * 3, "process.rss"),
        ([BASE + round(KNOWN_BYTES * 1.03)] * 3, [BASE] * 3, "process.rss"),
        ([SEEN, None, SEEN], [BASE] * 3, "process.rss"),  # claims to work and is silent
        ([SEEN] * 3, [SEEN] * 3, "freed.process.rss"),
        ([SEEN] * 3, [BASE + 2 * KNOWN_BYTES] * 3, "freed.process.rss"),
    ],
)
def test_a_channel_that_sees_something_else_fails(
    held: list[int | None], freed: list[int | None], failing: str
) -> None:
    found = known(rounds(Channel.RSS, held, freed))
    assert found[f"memory.{failing}"] is False
    assert found["memory.process.rss"] is (failing != "process.rss")


def test_no_reading_at_all_fails() -> None:
    assert set(known([]).values()) == {False}


def test_a_channel_that_cannot_work_is_named_and_not_judged() -> None:
    environment = cuda_environment()
    reason = message("memory.nvml_not_supported")
    channels = tuple(
        status
        if status.channel is Channel.TORCH_ALLOCATED
        else status.model_copy(update={"usable": False, "reason": reason})
        for status in environment.channels
    )
    environment = environment.model_copy(update={"channels": channels})
    assert known(honest(Channel.TORCH_ALLOCATED), environment) == {
        "memory.nvml.process": None,
        "memory.nvml.device": None,
        "memory.torch.allocated": True,
        "memory.freed.torch.allocated": True,
        "memory.torch.reserved": None,
        "memory.cuda.mem_get_info": None,
    }


def processes(
    grown: int = GRANDCHILD_BYTES, moved: int = 0, spike: int = SPIKE_BYTES
) -> list[Reading]:
    found: list[Reading] = []
    for channel in HOST:
        found += [
            reading(channel, Moment.GRANDCHILD_IDLE, BASE),
            reading(channel, Moment.GRANDCHILD_HOLDS, BASE + grown),
            reading(channel, Moment.BEFORE_SPIKE, BASE),
            reading(channel, Moment.AFTER_SPIKE, BASE),
        ]
    return [
        *found,
        reading(Channel.HIGH_WATER, Moment.GRANDCHILD_IDLE, BASE),
        reading(Channel.HIGH_WATER, Moment.GRANDCHILD_HOLDS, BASE + moved),
        reading(Channel.HIGH_WATER, Moment.AFTER_SPIKE, BASE + spike),
    ]


def judged(readings: list[Reading], not_reset: Message | None = None) -> dict[str, bool | None]:
    return verdicts(process_checks(readings, cpu_environment(), not_reset))


def test_a_grandchild_counts_for_the_tree_and_not_for_the_root() -> None:
    assert all(judged(processes()).values())
    assert len(judged(processes())) == 5
    assert judged(processes(grown=0))["memory.grandchild.process.uss"] is False
    assert judged(processes(moved=GRANDCHILD_BYTES))["root.process.hwm"] is False


def test_a_spike_that_is_missed_fails() -> None:
    assert judged(processes(spike=0))["memory.spike.process.hwm"] is False
    assert judged(processes(spike=2 * SPIKE_BYTES))["memory.spike.process.hwm"] is False


def test_a_mark_that_was_not_reset_is_not_judged() -> None:
    denied = message("memory.process_denied")
    for spike in (0, SPIKE_BYTES, 2 * SPIKE_BYTES):
        found = judged(processes(spike=spike), denied)
        assert found["memory.process.hwm"] is None
        assert not {"memory.spike.process.hwm", "root.process.hwm"} & found.keys()


@pytest.mark.parametrize(("cpu_s", "passed"), [(0.05, True), (0.07, False)])
def test_the_cost_is_a_share_of_all_cores(cpu_s: float, passed: bool) -> None:
    check = cost_check(SamplerCost(arm="selfcheck", cpu_s=cpu_s, wall_s=3), cores=2)
    assert verdicts([check]) == {"sampler.cost.cpu": passed}


def run(lang: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """The real program, with ``code`` run before it to break something."""
    run = "from experiment.commands.main import main\nsys.exit(main(sys.argv[1:]))"
    program = f"import sys\n{code}\n{run}"
    return subprocess.run(
        [sys.executable, "-c", program, "selfcheck", "--lang", lang],
        capture_output=True, text=True, encoding="utf-8", timeout=180, check=False, cwd=ROOT,
    )  # fmt: skip


def test_a_check_that_fails_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = known_amount_checks(honest(Channel.RSS), cpu_environment(), "cpu")
    assert False in {check.passed for check in found}  # the other channels said nothing
    monkeypatch.setattr("experiment.selfcheck.checks.all_checks", lambda _: found)
    assert main(["selfcheck", "--lang", "zh"]) == ExitCode.INCOMPLETE
    assert "未通过" in capsys.readouterr().out


# Shares of a core say nothing on a machine that others keep busy.
QUIET = "import experiment.selfcheck.memory as m; m.COST_LIMIT = 1.0"


def test_the_instrument_passes_here() -> None:
    done = run("en", QUIET)
    assert done.stderr == ""
    assert done.returncode == ExitCode.OK, done.stdout
    assert "failed" not in done.stdout
    if sys.platform == "linux":
        for text in ("RSS", "USS", "PSS", "Peak RSS", "CPU time", "Tensor bytes",
                     "Poisoned slots", "not judged"):  # fmt: skip
            assert text in done.stdout


BROKEN = """
from experiment.memory.process_tree import ProcessTree
rss = ProcessTree.rss
def half(self, *, fresh=False):
    figure = rss(self, fresh=fresh)
    return type(figure)(figure.bytes // 2)
ProcessTree.rss = half
"""


@pytest.mark.skipif("PAGEDKV_FULL" not in os.environ, reason="make test-full PART=faults")
def test_an_instrument_that_sees_half_fails() -> None:
    done = run("zh", f"{QUIET}\n{BROKEN}")
    assert done.returncode == ExitCode.INCOMPLETE
    assert done.stderr == ""
    assert "未通过" in done.stdout
