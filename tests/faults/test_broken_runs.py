"""A run to which something happens: what was measured before stands, the rest goes on or is named.

Each row of ``FAULTS`` is done to a run of two arms in real processes, at a moment of its log or of
its terminal; those of ``MORE`` by `make test-full`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from programs import (
    FIRST,
    SECOND,
    SHM,
    Program,
    Seen,
    Starter,
    arm_ended,
    arm_steps,
    begun,
    run_ended,
    shared_memory,
    take_interrupts,
)
from real_parts import is_gone, prepare, run_arms
from sweeps import full
from texts import fixed

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.config.schema import Config
from experiment.events import ArmFailed, ArmStarted, Event, Notice, RunFinished, RunStarted, Step
from experiment.machine.environment import Environment
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode


@dataclass(frozen=True)
class Fault:
    """What happens to a run, when, and what comes of it.

    Attributes:
        arms: of each arm that began why it failed, None if it did not; None: it is left to chance.
        at: what the log holds, or the terminal shows, when it happens; None: it is in ``told``.
        words: of the command line.
        end: how the run ended by its log; None: the log has no end.
        line: part of the only error line; empty: there is none.
        said: key of a text that is printed.
        terminal: it has one; so has a run of which ``at`` is a text.
        preexec, told: see :class:`programs.Starter`.
    """

    code: int
    arms: tuple[str | None, ...] | None
    at: Seen | str | None = None
    act: Callable[[Program], object] = lambda _: None
    words: tuple[str, ...] = ("--yes",)
    end: str | None = "interrupted"
    line: str = ""
    said: str = ""
    drawn: bool = True
    terminal: bool = False
    preexec: Callable[[], object] = take_interrupts
    told: Mapping[str, Any] = field(default_factory=dict)


def send(number: int) -> Callable[[Program], object]:
    return lambda program: program.process.send_signal(number)


def stop_the_arm(program: Program) -> None:
    """As a debugger does: it cannot even be asked to end."""
    os.kill(program.pids[-1], signal.SIGSTOP)


def interrupt_twice(program: Program) -> None:
    (pid,) = program.pids
    program.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert Path(f"/proc/{pid}").exists()
    program.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert is_gone(pid)
    assert time.monotonic() - began < 1.5, "asked first, it would have had three seconds"


def close_the_pipe(program: Program) -> None:
    """As `| head` does."""
    assert program.process.stdout is not None
    program.process.stdout.close()
    program.process.stdout = None


def hang_up_while_it_is_drawn(program: Program) -> None:
    time.sleep(0.05)
    assert not (program.out / "report.html").exists()
    program.hang_up()


def move_away(program: Program) -> None:
    program.out = program.out.rename(program.out.with_name("moved"))


def close_the_streams() -> None:
    """As `<&- >&- 2>&-` do."""
    os.closerange(0, 3)


def print_to_a_full_disk() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def limit_files() -> None:
    """To less than the 23 KiB of the whole log."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10))


def quits(program: Program) -> None:
    program.answer("q")


BOTH, NO_END, INTERRUPTED = (None, None), "failure.no_end", "error.interrupted"
SLOW, GATE = {"pause_s": 0.2}, ("--ascii",)
FAULTS = {
    "an arm is stopped": Fault(
        ExitCode.INCOMPLETE, ("failure.timeout", None), arm_steps(FIRST), stop_the_arm,
        ("--yes", "--set", "run.arm_timeout_s=3"), "incomplete",
        told={"scripts": {FIRST: "hang"}},
    ),
    "an arm is killed and another refuses its model": Fault(
        ExitCode.INCOMPLETE, ("failure.killed", "error.model_logits"), end="incomplete",
        told={"scripts": {FIRST: "start others and be killed", SECOND: "refuse its model"}},
    ),
    "an arm has no memory and somebody leaves": Fault(
        ExitCode.INCOMPLETE, ("failure.out_of_memory",), "Press Enter", quits, GATE, "left",
        told={"scripts": {FIRST: "run out of GPU memory"}},
    ),
    "it is asked to end": Fault(
        ExitCode.TERMINATED, (None, INTERRUPTED), arm_steps(SECOND), send(signal.SIGTERM), told=SLOW
    ),
    "Ctrl-C twice": Fault(
        ExitCode.INTERRUPTED, (INTERRUPTED,), arm_steps(FIRST), interrupt_twice,
        told={"scripts": {FIRST: "ignore being asked to end"}},
    ),
    "Ctrl-C while it is drawn": Fault(
        ExitCode.INTERRUPTED, BOTH, run_ended, send(signal.SIGINT), end="complete",
        said="note.not_drawn", drawn=False,
    ),
    "its terminal closes": Fault(
        ExitCode.HUNG_UP, (INTERRUPTED,), "Reserved:", Program.hang_up, ("--yes", "--details"),
        told=SLOW,
    ),
    "its terminal closes while it is drawn": Fault(
        ExitCode.OK, BOTH, run_ended, hang_up_while_it_is_drawn, ("--yes", "--quiet"),
        "complete", terminal=True,
    ),
    "its reader has seen enough": Fault(
        ExitCode.OK, BOTH, arm_steps(FIRST), close_the_pipe, end="complete",
        told={"pause_s": 0.05},
    ),
    "it has no streams": Fault(  # nor does a gate wait
        ExitCode.OK, BOTH, words=("--lang", "en"), end="complete",
        preexec=close_the_streams,
    ),
    "its output meets a full disk": Fault(
        ExitCode.UNWRITABLE, BOTH, end="complete", line="stdout",
        preexec=print_to_a_full_disk,
    ),
    "its output meets a full disk when an arm failed": Fault(
        ExitCode.INCOMPLETE, ("error.model_logits", None), end="incomplete", line="stdout",
        preexec=print_to_a_full_disk, told={"scripts": {FIRST: "refuse its model"}},
    ),
    "its directory is moved": Fault(
        ExitCode.UNWRITABLE, (None, NO_END), arm_steps(FIRST), move_away, end=None,
        line="Cannot write", drawn=False, told=SLOW,
    ),
    "its files may grow no more": Fault(
        ExitCode.UNWRITABLE, None, end=None, line=EVENTS_FILE, drawn=False,
        preexec=limit_files, told={"pause_s": 0.05},
    ),
}  # fmt: skip
MORE = {
    "Ctrl-C in the preparation": Fault(
        ExitCode.INTERRUPTED, (), begun("prepare"), send(signal.SIGINT),
        told={"hang_in": "prepare"},
    ),
    "Ctrl-C while an arm loads": Fault(
        ExitCode.INTERRUPTED, (INTERRUPTED,), begun(FIRST), send(signal.SIGINT),
        told={"scripts": {FIRST: "hang at once"}},
    ),
    "Ctrl-C between two arms": Fault(
        ExitCode.INTERRUPTED, (None,), arm_ended(FIRST), send(signal.SIGINT),
        told={"hang_in": "between"},
    ),
    "it is asked to end at the first line": Fault(
        ExitCode.TERMINATED, (), told={"signal_in": "the first line"}
    ),
    "it is asked to end behind the last process": Fault(
        ExitCode.TERMINATED, BOTH, end="complete", told={"signal_in": "the last process"}
    ),
    "it is asked to end at the gate": Fault(
        ExitCode.TERMINATED, (None,), "Press Enter", send(signal.SIGTERM), GATE
    ),
    "its terminal closes at the gate": Fault(
        ExitCode.HUNG_UP, (None,), "Press Enter", Program.hang_up, GATE
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*FAULTS, *(pytest.param(name, marks=full) for name in MORE)])
def test_whatever_happens_to_a_run_what_it_measured_stands_and_nothing_is_left(
    name: str, start: Starter
) -> None:
    fault = {**FAULTS, **MORE}[name]
    terminal = fault.terminal or isinstance(fault.at, str)
    program = start(*fault.words, terminal=terminal, preexec=fault.preexec, **fault.told)
    before = program.wait_for(fault.at) if callable(fault.at) else []
    if isinstance(fault.at, str):
        program.read_until(fault.at)
    fault.act(program)
    if program.terminal is not None:
        program.read_until("report.html")
    code, printed, err = program.end()
    assert (code, [fault.line in line for line in err.splitlines()]) == (
        fault.code, [True] if fault.line else []
    )  # fmt: skip
    # A signal that comes while the page is drawn may also come right after it.
    drawn = fault.drawn or "report.html" in printed
    if fault.said and drawn is fault.drawn:
        assert fixed(fault.said) in " ".join(printed.split())
    if start.note.exists():  # of an arm that started others
        others = json.loads(start.note.read_text(encoding="utf-8"))
        assert all(map(is_gone, others["pids"]))
        assert not (SHM / others["shared"]).exists()

    record = read_record(program.out)
    assert record.damaged_lines == 0
    assert isinstance(record.events[0], RunStarted)
    assert list(record.events[: len(before)]) == before
    assert [end.status for end in record.of(RunFinished)] == ([fault.end] if fault.end else [])
    arms = evaluate(record).arms
    assert fault.arms in (None, tuple(arm.reason.key if arm.reason else None for arm in arms))
    notes = [note.text for note in record.of(Notice) if note.text.key == "note.ended_by"]
    ended_by = {ExitCode.TERMINATED: ["SIGTERM"], ExitCode.HUNG_UP: ["SIGHUP"]}
    assert [text.params["signal"] for text in notes] == ended_by.get(code, [])

    report = program.out / "report.html"
    assert report.exists() is drawn
    if not drawn:
        assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    page = unescape(report.read_text(encoding="utf-8")).replace("\u00a0", " ")
    assert page.startswith("<!DOCTYPE html>")
    assert all(fixed(arm.reason.key) in page for arm in arms if arm.reason)
    assert ("This run was interrupted" in page) is (fault.end == "interrupted")


CONFIG = Config.model_validate(
    {
        "model": {"name": "tiny-gpt2"},
        "workload": {"max_new_tokens": 24},
        "run": {"arms": ["paged"], "device": "cpu", "threads": 1},
    }
)


@full
def test_a_real_arm_that_is_killed_at_a_random_moment_leaves_all_that_it_said(
    environment: Environment, tmp_path: Path
) -> None:
    prompts = ["Hello", "A longer one " * 5]
    prepared = prepare(tmp_path / "prepare", CONFIG, environment, prompts)
    whole = run_arms(tmp_path / "whole", CONFIG, environment, prepared)
    plans = [step.plan for step in whole.of(Step)]
    for seed in range(20):
        last, shared = random.Random(seed).randrange(len(plans)), shared_memory()
        pids: list[int] = []

        def listener(event: Event, last: int = last, pids: list[int] = pids) -> None:
            if isinstance(event, ArmStarted):
                pids.append(event.pid)
            if isinstance(event, Step) and event.plan.step == plans[last].step:
                os.kill(pids[0], signal.SIGKILL)

        record = run_arms(tmp_path / str(seed), CONFIG, environment, prepared, listener)
        (failed,) = record.of(ArmFailed)
        assert (failed.reason.key, failed.exit_code) == ("failure.killed", -signal.SIGKILL)
        mine = [step.plan for step in record.of(Step)]
        assert last < len(mine)
        assert mine == plans[: len(mine)]
        (arm,) = evaluate(record).arms
        assert (record.damaged_lines, arm.problems, arm.generate_s) == (0, [], None)
        assert all(map(is_gone, pids))
        assert shared_memory() <= shared
