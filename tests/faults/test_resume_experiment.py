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

from experiment.analysis.experiment_results import ExperimentResult
from experiment.commands import main as cli
from experiment.commands.resume import ArmKey, finished_arms, read_resumption
from experiment.config.reading import load_config
from experiment.events import (
    ArmSkipped,
    ArmStarted,
    CellStarted,
    Event,
    RequestFinished,
    RunFinished,
    RunResumed,
    TurnStarted,
    encode,
)
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
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, frozenset[ArmKey]]:
    """Killed in the first cell's second arm, and gone on with; the arms that had ended before."""
    out = tmp_path_factory.mktemp("killed") / "out"
    program = real(out, *words(), "--yes", "--out", str(out))
    program.wait_for(began(0, ARMS[1]))
    program.process.send_signal(signal.SIGKILL)
    program.end()
    before = finished_arms(read_record(out))
    code, printed, err = real(out, "--resume", str(out), "--yes").end()
    assert (code, err) == (ExitCode.OK, "")
    assert f"arms left to run: {len(ALL) - len(before)}" in " ".join(printed.split())
    return out, before


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    """What the same experiment finds where nobody kills it."""
    config = load_config(CONFIG, {"experiment.size": "quick"} | SMALL)
    return run_in_process(config, tmp_path_factory.mktemp("whole")).result


def test_what_had_ended_is_not_run_again_and_the_rest_is(
    killed: tuple[Path, frozenset[ArmKey]],
) -> None:
    out, before = killed
    assert before == {(0, "slabs")}
    assert attempts(out) == {key: 2 if key == (0, "paged") else 1 for key in ALL}
    record = read_record(out)
    (resumed,) = record.of(RunResumed)
    assert [tuple(key) for key in resumed.missing] == [key for key in ALL if key not in before]
    assert [event.status for event in record.of(RunFinished)] == ["complete"]
    assert [event.index for event in record.of(CellStarted)] == [0, 1]


def test_it_counts_what_an_experiment_does_that_nobody_killed(
    killed: tuple[Path, frozenset[ArmKey]], whole: ExperimentResult
) -> None:
    summary = json.loads((killed[0] / RUN_FILE).read_text(encoding="utf-8"))
    result = ExperimentResult.model_validate(summary["results"]["experiment"])
    assert result.problems == []
    assert [cell.values["requests"] for cell in result.cells] == VALUES
    assert counts(result) == counts(whole)
    assert counts(result)[1, "paged", "running_mean"] != counts(result)[1, "slabs", "running_mean"]
    assert (result.foretold, result.cells_planned) == (whole.foretold, len(VALUES))
    assert "interrupted and resumed" in (killed[0] / "report.html").read_text(encoding="utf-8")


def test_whoever_took_turns_with_one_that_was_killed_runs_again(
    whole: ExperimentResult, tmp_path: Path
) -> None:
    """None of them had ended, so none is missing from the figures afterwards."""
    out = tmp_path / "out"
    # A log is read in steps, so a turn may be missed: the kill has thirteen turns to come in.
    changes = words(experiment__turns=True, experiment__repeats=4)
    program = real(out, *changes, "--yes", "--out", str(out))
    program.wait_for(lambda events: sum(isinstance(e, TurnStarted) for e in events) >= 3)
    program.process.send_signal(signal.SIGKILL)
    program.end()
    assert len(finished_arms(read_record(out))) < len(ALL)
    code, _, err = real(out, "--resume", str(out), "--yes").end()
    assert (code, err) == (ExitCode.OK, "")
    assert finished_arms(read_record(out)) == set(ALL)
    summary = json.loads((out / RUN_FILE).read_text(encoding="utf-8"))
    result = ExperimentResult.model_validate(summary["results"]["experiment"])
    assert counts(result) == counts(whole)
    assert result.problems == []


def test_one_that_is_whole_is_left_alone(
    killed: tuple[Path, frozenset[ArmKey]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = killed[0]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert cli.main(["--resume", str(out), "--lang", "en"]) == ExitCode.OK
    assert "is complete: nothing is left to run" in " ".join(capsys.readouterr().out.split())
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_one_that_contradicts_itself_ends_once_more_as_it_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a gate, and with one, whatever that says: 3, as the run itself ended."""
    monkeypatch.setattr("experiment.commands.resume.__version__", "test")
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
    for most in (None, 99, 1):
        limit = f'"capacity/requests=2/paged/running_peak" = {{ max = {most} }}'
        gate.write_text(f"[limits]\n{limit}\n", encoding="utf-8")
        capsys.readouterr()
        gated = [] if most is None else ["--gate", str(gate)]
        assert cli.main([*words, *gated]) == ExitCode.INCOMPLETE
        printed = " ".join(capsys.readouterr().out.split())
        assert "is complete: nothing is left to run" in printed
        assert "tokens are not the same in every repeat" in printed
        assert ("Gate" in printed) is (most is not None)


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


def test_an_arm_that_runs_again_is_asked_again_where_it_was_spared(
    killed: tuple[Path, frozenset[ArmKey]], tmp_path: Path
) -> None:
    """What it did before it failed may have been why."""
    log = skipped(killed[0], message("experiments.serving.saturated", rate=2))
    unended = [
        line for line in log if not ('"event":"arm_finished"' in line and '"arm":"slabs"' in line)
    ]
    assert len(unended) == len(log) - 1
    (tmp_path / EVENTS_FILE).write_text("".join(unended), encoding="utf-8")
    assert read_resumption(tmp_path, None, {}).missing == ((0, "slabs"), (1, "slabs"))


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
    killed: tuple[Path, frozenset[ArmKey]],
    why: Message,
    vllm: bool,
    missing: tuple[ArmKey, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / EVENTS_FILE).write_text("".join(skipped(killed[0], why)), encoding="utf-8")
    there = "python" if vllm else message("vllm.missing")
    monkeypatch.setattr("experiment.commands.resume.find_vllm", lambda device: there)
    found = read_resumption(tmp_path, None, {})
    assert found.missing == missing
    assert found.complete is (not missing)


def test_one_that_was_killed_before_its_first_cell_runs_all_of_them(
    start: Starter, tmp_path: Path
) -> None:
    """With arms that take no seconds."""
    out = tmp_path / "out"
    program = start("run", *words(), "--yes", "--out", str(out), hang_in="prepare", out=out)
    program.wait_for(lambda events: any(isinstance(event, ArmStarted) for event in events))
    program.process.send_signal(signal.SIGKILL)
    program.end()
    code, printed, _ = start("--resume", str(out), "--yes", out=out).end()
    assert f"arms left to run: {len(ALL)}" in " ".join(printed.split())
    assert {key: n for key, n in attempts(out).items() if key in ALL} == dict.fromkeys(ALL, 1)
    assert finished_arms(read_record(out)) >= set(ALL)
    assert code in (ExitCode.OK, ExitCode.INCOMPLETE)  # they did not run what the cells ask for
