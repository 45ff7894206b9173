"""An experiment that was killed in the middle goes on with the arms and cells that are missing."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from in_process import run as run_in_process
from programs import Starter, real
from sweeps import full
from texts import fixed

from experiment.analysis.experiment_results import ExperimentResult
from experiment.commands import main as cli
from experiment.config.reading import load_config
from experiment.events import (
    ArmSkipped,
    ArmStarted,
    CellStarted,
    Event,
    RequestFinished,
    RunResumed,
    TurnStarted,
    encode,
)
from experiment.machine.environment import Environment
from experiment.measure.resume import ArmKey, finished_arms, read_resumption
from experiment.record.log import EVENTS_FILE, RUN_FILE, read_record
from experiment.text.errors import ExitCode
from experiment.text.messages import Message, message

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "configs" / "capacity.toml"
SLOT = 1024
ARMS = ("slabs", "paged")
# Of the first cell one arm has ended when it is killed; the second cell was never begun.
VALUES = [2, 12]
SMALL: dict[str, Any] = {
    "experiment.values": VALUES, "experiment.repeats": 1, "cache.max_length": 64,
    "experiment.options.lengths": [[5, 4], [9, 5]], "cache.block_size": 4,
    "cache.budget": 2 * 64 * SLOT, "run.threads": 1, "run.device": "cpu", "model.offline": True,
    "run.arms": list(ARMS), "experiment.turns": False,
}  # fmt: skip
ALL = [(cell, arm) for cell in range(len(VALUES)) for arm in ARMS]


def words(**changes: object) -> list[str]:
    """Of the command; in names of keys two underscores are a dot."""
    keys = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    given = [word for key, value in keys.items() for word in ("--set", f"{key}={toml(value)}")]
    return ["--config", str(CONFIG), "--quick", *given]


def toml(value: object) -> str:
    return json.dumps(value)


def attempts(run: Path) -> Counter[ArmKey]:
    """How often each arm was begun, by its cell; as the log has it, every attempt."""
    begun: Counter[ArmKey] = Counter()
    cell: int | None = None
    for line in (run / EVENTS_FILE).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "cell":
            cell = event["index"]
        elif event["event"] == "arm_started":
            begun[cell, event["arm"]] += 1
    return begun


def began(cell: int, arm: str) -> Any:
    """Seen: an arm of a cell has begun."""

    def seen(events: list[Event]) -> bool:
        here: int | None = None
        for event in events:
            if isinstance(event, CellStarted):
                here = event.index
            elif isinstance(event, ArmStarted) and (here, event.arm) == (cell, arm):
                return True
        return False

    return seen


def counts(result: ExperimentResult) -> dict[tuple[int, str, str], object]:
    """Every figure that is counted and not timed, and digests of all tokens."""
    names = [info.figure for info in result.figures if info.kind == "count"]
    found: dict[tuple[int, str, str], object] = {}
    for cell in result.cells:
        for arm in cell.arms:
            found[cell.index, arm.arm, "outputs"] = arm.outputs
            found |= {(cell.index, arm.arm, name): arm.figures[name].value for name in names}
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, environment: Environment) -> Path:
    """Killed in the first cell's second arm, and resumed, with arms that take no seconds."""
    place = tmp_path_factory.mktemp("killed")
    start, out = Starter(place, environment.model_dump(mode="json")), place / "out"
    program = start("run", *words(), "--yes", "--out", str(out), pause_s=0.3, out=out)
    program.wait_for(began(0, ARMS[1]))
    program.process.send_signal(signal.SIGKILL)
    program.end()
    assert finished_arms(read_record(out)) == {(0, ARMS[0])}
    code, printed, _ = start("--resume", str(out), "--yes", out=out).end()
    assert code in (ExitCode.OK, ExitCode.INCOMPLETE)  # they do not run what the cells ask for
    assert f"arms left: {len(ALL) - 1}" in " ".join(printed.split())
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    """What the same experiment finds where nobody kills it."""
    small = {"experiment.size": "quick"} | SMALL | {"experiment.values": VALUES[:1]}
    return run_in_process(load_config(CONFIG, small), tmp_path_factory.mktemp("whole")).result


def test_what_had_ended_is_not_run_again_and_the_rest_is(killed: Path) -> None:
    begun = {key: count for key, count in attempts(killed).items() if key in ALL}
    assert begun == {key: 2 if key == (0, ARMS[1]) else 1 for key in ALL}
    record = read_record(killed)
    (resumed,) = record.of(RunResumed)
    assert [tuple(key) for key in resumed.missing] == ALL[1:]
    assert finished_arms(record) == set(ALL)
    assert [event.index for event in record.of(CellStarted)] == [0, 1]
    assert fixed("note.resumed") in (killed / "report.html").read_text(encoding="utf-8")


@full
def test_arms_that_took_turns_run_again_and_count_as_where_nothing_was_killed(
    whole: ExperimentResult, tmp_path: Path
) -> None:
    """With real arms: none of them had ended, so none is missing from the figures afterwards."""
    out = tmp_path / "out"
    # A log is read in steps, so a turn may be missed: the kill has nine turns to come in.
    changes = words(experiment__values=VALUES[:1], experiment__turns=True, experiment__repeats=6)
    program = real(out, *changes, "--yes", "--out", str(out))
    program.wait_for(lambda events: sum(isinstance(e, TurnStarted) for e in events) >= 3)
    program.process.send_signal(signal.SIGKILL)
    program.end()
    assert finished_arms(read_record(out)) == set()
    code, _, err = real(out, "--resume", str(out), "--yes").end()
    assert (code, err) == (ExitCode.OK, "")
    assert finished_arms(read_record(out)) == {(0, arm) for arm in ARMS}
    summary = json.loads((out / RUN_FILE).read_text(encoding="utf-8"))
    result = ExperimentResult.model_validate(summary["results"]["experiment"])
    assert counts(result) == counts(whole)
    assert result.problems == []


def test_one_that_contradicts_itself_ends_once_more_as_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a gate, and with one, whatever that says: 3, as the run itself ended."""
    monkeypatch.setattr("experiment.measure.resume.__version__", "test")
    small = {"experiment.size": "quick"} | SMALL | {"experiment.values": VALUES[:1]}
    ran = run_in_process(load_config(CONFIG, small), tmp_path / "run")
    log, gate = ran.record.directory / EVENTS_FILE, tmp_path / "gate.toml"
    words = ["--resume", str(log.parent), "--lang", "en"]
    assert cli.main(words) == ExitCode.OK
    events = list(ran.record.events)
    last = max(n for n, event in enumerate(events) if isinstance(event, RequestFinished))
    told = events[last].model_dump()
    events[last] = RequestFinished(**{**told, "tokens": [*told["tokens"][:-1], 7]})
    log.write_text("".join(encode(event) + "\n" for event in events), encoding="utf-8")
    limit = '"capacity/requests=2/paged/running_peak" = { max = 99 }'
    gate.write_text(f"[limits]\n{limit}\n", encoding="utf-8")
    for gated in ([], ["--gate", str(gate)]):
        capsys.readouterr()
        assert cli.main([*words, *gated]) == ExitCode.INCOMPLETE
        printed = " ".join(capsys.readouterr().out.split())
        assert fixed("note.resume_complete") in printed
        assert fixed("experiments.problem.uneven") in printed
        assert "Tokens generated" in printed


def skipped(out: Path, why: Message) -> list[str]:
    """The log of a whole run, but for an arm that is said to have been skipped in its last cell."""
    kept: list[str] = []
    for event in read_record(out).events:
        cells = [each for each in kept if '"event":"cell"' in each]
        if len(cells) < len(VALUES) or getattr(event, "arm", None) != "slabs":
            kept.append(encode(event) + "\n")
        elif isinstance(event, ArmStarted):
            kept.append(encode(ArmSkipped(arm=event.arm, reason=why)) + "\n")
    return kept


@pytest.mark.parametrize(
    ("why", "vllm", "missing"),
    [
        (message("experiments.serving.saturated", rate=2), True, ()),
        (message("skip.no_stops"), True, ()),
        (message("vllm.missing"), False, ()),
        (message("vllm.missing"), True, ((1, "slabs"),)),
    ],
)
def test_what_was_left_out_is_left_to_run_only_where_it_can_run_now(
    killed: Path,
    why: Message,
    vllm: bool,
    missing: tuple[ArmKey, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / EVENTS_FILE).write_text("".join(skipped(killed, why)), encoding="utf-8")
    there = "python" if vllm else message("vllm.missing")
    monkeypatch.setattr("experiment.measure.resume.find_vllm", lambda device: there)
    found = read_resumption(tmp_path, None, {})
    assert found.missing == missing
    assert found.complete is (not missing)
