"""Arms that are killed, stopped, starved or given a broken model: all the rest stands."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path

import pytest
from programs import (
    ARMS,
    SHM,
    Starter,
    arm_steps,
    in_a_terminal,
    no_shared_memory_is_left,
    read_until,
    shared_memory,
)
from real_parts import is_gone, prepare, run_arms
from sweeps import full
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.config.schema import Config
from experiment.events import (
    ArmFailed,
    ArmStarted,
    Event,
    PoolReserved,
    RequestFinished,
    RunFinished,
    Stage,
    StageEntered,
    Step,
)
from experiment.machine.environment import Environment
from experiment.record.log import Record, read_record
from experiment.text.errors import ExitCode
from experiment.workload.prepared import Prepared

FIRST, SECOND = ARMS
ARM = "paged"
CONFIG = Config.model_validate(
    {
        "model": {"name": "tiny-gpt2"},
        "workload": {"max_new_tokens": 24},
        "run": {"arms": [ARM], "device": "cpu", "threads": 1},
    }
)


@pytest.fixture(scope="module")
def prepared(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    directory = tmp_path_factory.mktemp("prepare")
    return prepare(directory, CONFIG, environment, ["Hello", "A longer one " * 5])


@pytest.fixture(scope="module")
def whole(
    environment: Environment, prepared: Prepared, tmp_path_factory: pytest.TempPathFactory
) -> Record:
    """What the arm says when nobody kills it."""
    return run_arms(tmp_path_factory.mktemp("whole"), CONFIG, environment, prepared)


def is_moment(event: Event) -> bool:
    """Whether the arm itself said this, before it stood still to end."""
    ending = isinstance(event, StageEntered) and event.stage is Stage.RELEASED
    return isinstance(event, Step | StageEntered | RequestFinished | PoolReserved) and not ending


@full
@pytest.mark.parametrize("seed", range(20))
def test_an_arm_that_is_killed_at_a_random_moment_leaves_all_that_it_said(
    seed: int, environment: Environment, prepared: Prepared, whole: Record, tmp_path: Path
) -> None:
    moments = sum(is_moment(event) for event in whole.events)
    chosen = random.Random(seed).randrange(moments)
    seen: list[Event] = []
    pids: list[int] = []
    shared = shared_memory()

    def listener(event: Event) -> None:
        if isinstance(event, ArmStarted):
            pids.append(event.pid)
        if is_moment(event):
            seen.append(event)
            if len(seen) == chosen + 1:
                os.kill(pids[0], signal.SIGKILL)

    record = run_arms(tmp_path / "run", CONFIG, environment, prepared, listener)
    assert record.damaged_lines == 0
    (failed,) = record.of(ArmFailed)
    assert (failed.reason.key, failed.exit_code) == ("failure.killed", -signal.SIGKILL)
    plans = [step.plan for step in whole.of(Step)]
    mine = [step.plan for step in record.of(Step)]
    assert mine == plans[: len(mine)]
    assert sum(is_moment(event) for event in record.events) > chosen
    known = {r.request: r.tokens for r in whole.of(RequestFinished)}
    assert all(known[r.request] == r.tokens for r in record.of(RequestFinished))
    (arm,) = evaluate(record).arms
    assert (arm.status, arm.problems, arm.generate_s) == ("failed", [], None)
    assert all(is_gone(pid) for pid in pids)
    no_shared_memory_is_left(shared)
    if seed == 0:
        assert main(["render", str(record.directory), "--lang", "en"]) == ExitCode.OK
        page = (record.directory / "report.html").read_text(encoding="utf-8")
        assert "Killed from outside (SIGKILL)" in page


def test_an_arm_that_stands_still_is_ended_with_all_below_it(start: Starter) -> None:
    """Stopped, as by a debugger: it cannot even be asked to end."""
    program = start("--yes", "--set", "run.arm_timeout_s=3", scripts={FIRST: "hang"})
    seen = program.wait_for(arm_steps(FIRST))
    (pid,) = [event.pid for event in seen if isinstance(event, ArmStarted)]
    os.kill(pid, signal.SIGSTOP)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.INCOMPLETE, "")
    first, second = evaluate(read_record(program.out)).arms
    assert (first.status, second.status) == ("failed", "finished")
    assert first.reason is not None
    assert first.reason.key == "failure.timeout"
    assert first.steps
    assert fixed("failure.timeout") in (program.out / "report.html").read_text("utf-8")


def test_nothing_that_an_arm_started_outlives_the_arm(start: Starter) -> None:
    """It dies by itself, and the other arm runs beside nothing of it; that one fails, too."""
    scripts = {FIRST: "start others and be killed", SECOND: "refuse its model"}
    program = start(scripts=scripts)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.INCOMPLETE, "")
    others = json.loads(start.note.read_text(encoding="utf-8"))
    assert all(is_gone(pid) for pid in others["pids"])
    assert not (SHM / others["shared"]).exists()
    reasons = [arm.reason and arm.reason.key for arm in evaluate(read_record(program.out)).arms]
    assert reasons == ["failure.killed", "error.model_logits"]
    page = (program.out / "report.html").read_text(encoding="utf-8")
    assert "(SIGKILL)" in page
    assert fixed("error.model_logits") in page


def test_whoever_leaves_behind_an_arm_that_failed_is_told_so_by_the_exit_code(
    start: Starter,
) -> None:
    """It fails by what torch raises on a GPU that is full."""
    scripts = {FIRST: "run out of GPU memory"}
    program, terminal = in_a_terminal(start, "--ascii", scripts=scripts)
    read_until(terminal, "Press Enter")
    os.write(terminal, b"q\n")
    read_until(terminal, "report.html")
    assert program.process.wait(60) == ExitCode.INCOMPLETE
    os.close(terminal)
    program.nothing_is_left()
    record = read_record(program.out)
    assert [end.status for end in record.of(RunFinished)] == ["left"]
    (failed,) = evaluate(record).arms
    assert (failed.status, failed.reason and failed.reason.key) == (
        "failed", "failure.out_of_memory"
    )  # fmt: skip
