"""Programs that are ended from outside, at every stage: what was measured stands, nothing is left.

Killed outright, the program draws nothing; the record is whole up to its last line.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import ARMS, Starter, arm_ended, arm_steps, events_of, in_a_terminal, read_until
from real_parts import is_gone

from experiment.analysis.conclusions import evaluate
from experiment.commands.main import main
from experiment.events import ArmStarted, Event, Notice, RunFinished, RunStarted
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import ExitCode

FIRST, SECOND = ARMS
CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.HUNG_UP,
}


def is_interrupted(out: Path, arms: tuple[str, ...]) -> None:
    """The record is closed, the arms are those that began, the report is there and says so."""
    record = read_record(out)
    assert record.of(RunFinished)[-1].status == "interrupted"
    assert tuple(arm.arm for arm in evaluate(record).arms) == arms
    assert "This run was interrupted" in (out / "report.html").read_text(encoding="utf-8")


def said_of_the_end(out: Path) -> list[dict[str, object]]:
    notes = [note.text for note in read_record(out).of(Notice)]
    return [text.params for text in notes if text.key == "note.ended_by"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_is_asked_to_end_draws_what_it_has(
    number: signal.Signals, start: Starter
) -> None:
    program = start(pause_s=0.2)
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(number)
    code, _, err = program.end()
    assert (code, err) == (CODES[number], "")
    is_interrupted(program.out, ARMS)
    first, second = evaluate(read_record(program.out)).arms
    assert (first.status, second.status) == ("finished", "failed")
    assert second.steps
    assert said_of_the_end(program.out) == (
        [{"signal": "SIGTERM"}] if number == signal.SIGTERM else []
    )


def test_ctrl_c_before_any_arm_leaves_a_record_without_arms(start: Starter) -> None:
    program = start(hang_in="prepare")
    program.wait_for(lambda events: any(isinstance(e, ArmStarted) for e in events))
    program.process.send_signal(signal.SIGINT)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.INTERRUPTED, "")
    is_interrupted(program.out, ())


def test_ctrl_c_twice_does_not_wait_for_a_process_that_will_not_go(start: Starter) -> None:
    program = start(scripts={FIRST: "ignore being asked to end"})
    seen = program.wait_for(arm_steps(FIRST))
    (pid,) = [event.pid for event in seen if isinstance(event, ArmStarted)]
    program.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert not is_dead(pid)
    program.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert is_gone(pid)
    assert time.monotonic() - began < 1.5, "asked first, it would have had three seconds"
    assert program.end()[0] == ExitCode.INTERRUPTED
    is_interrupted(program.out, (FIRST,))


def begun(arm: str) -> Callable[[list[Event]], bool]:
    return lambda events: any(isinstance(e, ArmStarted) and e.arm == arm for e in events)


def is_over(events: list[Event]) -> bool:
    return any(isinstance(e, RunFinished) for e in events)


# What the program is told to do, what is waited for, the arms that began, and how the run ended. In
# the middle of an arm it is tried above, with one that will not go.
STAGES: dict[str, tuple[dict[str, Any], Callable[[list[Event]], bool], tuple[str, ...], str]] = {
    "environment": ({"hang_in": "environment"}, begun("environment"), (), "interrupted"),
    "preparation": ({"hang_in": "prepare"}, begun("prepare"), (), "interrupted"),
    "an arm loads": ({"scripts": {FIRST: "hang at once"}}, begun(FIRST), (FIRST,), "interrupted"),
    "between two arms": ({"hang_in": "between"}, arm_ended(FIRST), (FIRST,), "interrupted"),
    "the report": ({}, is_over, ARMS, "complete"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_twice_at_every_stage(stage: str, start: Starter) -> None:
    """Whatever the second one meets: the record is whole, and nothing is left."""
    told, seen, arms, status = STAGES[stage]
    program = start(**told)
    program.wait_for(seen)
    program.process.send_signal(signal.SIGINT)
    time.sleep(0.05)  # two in one moment are one to the system
    program.process.send_signal(signal.SIGINT)
    code, printed, err = program.end()
    # What comes behind the end of a report that was left is not the program's any more.
    behind = {-signal.SIGINT} if status == "complete" else set()
    assert code in {ExitCode.INTERRUPTED, *behind}
    assert err == ""
    record = read_record(program.out)
    assert record.damaged_lines == 0
    assert [end.status for end in record.of(RunFinished)] == [status]
    assert tuple(arm.arm for arm in evaluate(record).arms) == arms
    drawn = (program.out / "report.html").exists()
    assert drawn == ("before the report was drawn" not in " ".join(printed.split()))


def is_dead(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_ctrl_c_while_the_report_is_drawn_leaves_it_undrawn(start: Starter) -> None:
    program = start()
    program.wait_for(lambda events: any(isinstance(e, RunFinished) for e in events))
    program.process.send_signal(signal.SIGINT)
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.INTERRUPTED, "")
    assert "Interrupted before the report was drawn" in " ".join(printed.split())
    assert not (program.out / "report.html").exists()
    assert [arm.status for arm in evaluate(read_record(program.out)).arms] == ["finished"] * 2
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    assert (program.out / "report.html").exists()


@pytest.mark.parametrize(
    ("moment", "status", "arms"),
    [("the first line", "interrupted", ()), ("the last process", "complete", ARMS)],
)
def test_a_signal_at_either_end_of_the_log_waits_until_it_is_whole(
    moment: str, status: str, arms: tuple[str, ...], start: Starter
) -> None:
    program = start(signal_in=moment)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    record = read_record(program.out)
    assert isinstance(record.events[0], RunStarted)
    assert [end.status for end in record.of(RunFinished)] == [status]
    assert tuple(arm.arm for arm in evaluate(record).arms) == arms
    assert said_of_the_end(program.out) == [{"signal": "SIGTERM"}]
    assert (program.out / "report.html").exists()


def test_a_signal_in_the_moment_in_which_drawing_begins_leaves_the_report_and_says_so(
    start: Starter,
) -> None:
    program = start(signal_in="drawing begins")
    code, printed, err = program.end()
    assert (code, err) == (ExitCode.TERMINATED, "")
    assert "Interrupted before the report was drawn" in " ".join(printed.split())
    assert not (program.out / "report.html").exists()


def _quits_without_a_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # as in a shell's background it is not


def test_a_program_that_quits_leaves_what_a_killed_one_does(start: Starter) -> None:
    r"""Ctrl-\ asks for an end at once, and for a core where the system keeps one."""
    program = start(pause_s=0.2, preexec_fn=_quits_without_a_core)
    program.wait_for(arm_steps(FIRST))
    program.process.send_signal(signal.SIGQUIT)
    assert program.end()[0] == -signal.SIGQUIT
    record = read_record(program.out)
    assert record.damaged_lines == 0
    assert evaluate(record).status == "failed"


def test_a_program_that_is_killed_leaves_a_record_that_can_be_drawn(
    start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stopped arm below it, that could not notice by itself."""
    program = start(scripts={SECOND: "hang"})
    seen = program.wait_for(arm_steps(SECOND))
    os.kill([e.pid for e in seen if isinstance(e, ArmStarted)][-1], signal.SIGSTOP)
    program.process.send_signal(signal.SIGKILL)
    assert program.end()[0] == -signal.SIGKILL
    with (program.out / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write('{"t_ns":17,"event":"rea')
    assert main(["render", str(program.out), "--lang", "en"]) == ExitCode.OK
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 lines of the event log are damaged" in printed
    record = read_record(program.out)
    assert [arm.status for arm in evaluate(record).arms] == ["finished", "failed"]
    assert evaluate(record).status == "failed"
    page = (program.out / "report.html").read_text(encoding="utf-8")
    assert "The log breaks off before this arm" in page


@pytest.mark.parametrize("where", ["an arm", "the gate"])
def test_a_terminal_that_closes_ends_the_run_in_order(where: str, start: Starter) -> None:
    words = ["--yes", "--details"] if where == "an arm" else ["--ascii"]
    program, terminal = in_a_terminal(start, *words, pause_s=0.2)
    if where == "an arm":
        read_until(terminal, "Reserved:")
    else:
        read_until(terminal, "Press Enter")
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.HUNG_UP
    program.nothing_is_left()
    is_interrupted(program.out, (FIRST,))
    assert said_of_the_end(program.out) == [{"signal": "SIGHUP"}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_the_gate_ends_the_run_in_order(number: signal.Signals, start: Starter) -> None:
    """While it waits for somebody to press Enter."""
    program, terminal = in_a_terminal(start, "--ascii")
    read_until(terminal, "Press Enter")
    program.process.send_signal(number)
    read_until(terminal, "report.html")
    assert program.process.wait(60) == CODES[number]
    os.close(terminal)
    program.nothing_is_left()
    is_interrupted(program.out, (FIRST,))


def test_a_shell_tells_of_a_closed_terminal_once_more(start: Starter) -> None:
    """At the gate nothing runs any more, so that a report is being drawn by then."""
    program, terminal = in_a_terminal(start, "--ascii")
    read_until(terminal, "Press Enter")
    os.close(terminal)
    program.wait_for(lambda events: any(isinstance(e, RunFinished) for e in events))
    while program.process.poll() is None:
        program.process.send_signal(signal.SIGHUP)
        time.sleep(0.02)
    # What comes behind the last report is not the program's any more, and ends it as it ends all.
    assert program.process.returncode in (ExitCode.HUNG_UP, -signal.SIGHUP)
    is_interrupted(program.out, (FIRST,))


def test_a_terminal_that_closes_while_the_report_is_drawn_does_not_leave_it(start: Starter) -> None:
    program, terminal = in_a_terminal(start, "--yes", "--quiet")
    program.wait_for(lambda events: any(isinstance(e, RunFinished) for e in events))
    time.sleep(0.05)
    assert not (program.out / "report.html").exists()
    os.close(terminal)
    assert program.process.wait(60) == ExitCode.OK
    assert (program.out / "report.html").exists()


def test_signals_that_were_ignored_stay_ignored(start: Starter) -> None:
    """As `nohup` asks for."""
    program = start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN), pause_s=0.2)
    program.wait_for(arm_steps(FIRST))
    program.process.send_signal(signal.SIGHUP)
    program.wait_for(arm_steps(SECOND))
    program.process.send_signal(signal.SIGKILL)
    program.end()


def test_nothing_is_said_of_a_run_that_had_not_begun(start: Starter) -> None:
    """Ctrl-C while the program loads: no traceback, at whatever import it is."""
    program = start()
    time.sleep(0.15)
    program.process.send_signal(signal.SIGINT)
    program.process.communicate(timeout=60)
    assert program.process.returncode in (ExitCode.INTERRUPTED, -signal.SIGINT)
    assert not [e for e in events_of(program.out) if isinstance(e, RunStarted)]


def test_two_programs_do_not_write_one_run(start: Starter, tmp_path: Path) -> None:
    both = [start(pause_s=0.2, out=tmp_path / "both") for _ in range(2)]
    ended = [(p.process.communicate(timeout=60), p.process.returncode) for p in both]
    assert sorted(code for _, code in ended) == [ExitCode.OK, ExitCode.USAGE]
    ((_, err),) = [printed for printed, code in ended if code == ExitCode.USAGE]
    (line,) = err.splitlines()
    assert line.startswith("Error: Another process is writing to")
    assert [arm.status for arm in evaluate(read_record(tmp_path / "both")).arms] == ["finished"] * 2


def test_shared_memory_of_processes_that_will_not_go_is_given_back(start: Starter) -> None:
    program = start("--yes", "--set", "run.arm_timeout_s=4", scripts={FIRST: "hold shared memory"})
    program.wait_for(arm_steps(FIRST))
    name = start.note.read_text(encoding="utf-8")
    assert Path("/dev/shm", name).exists()
    program.wait_for(arm_steps(SECOND))
    assert not Path("/dev/shm", name).exists()
    program.process.send_signal(signal.SIGTERM)
    program.end()


def test_a_wall_clock_that_jumps_changes_no_duration(start: Starter) -> None:
    program = start(clock_jumps=True)
    code, _, err = program.end()
    assert (code, err) == (ExitCode.OK, "")
    record = read_record(program.out)
    moments = [event.t_ns for event in record.events if not hasattr(event, "plan")]
    assert max(moments) - min(moments) < 120 * 10**9
    for arm in evaluate(record).arms:
        assert arm.status == "finished"
        assert 0 <= (arm.watch.waited_s or 0) < 60
        assert 0 < (arm.watch.watched_s or 0) < 60
