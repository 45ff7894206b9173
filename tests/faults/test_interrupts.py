"""Signals as exceptions: which raise, which wait, which kill, and what nobody's wish is.

In this process, at moments that a test from outside could not choose; whole programs are ended in
test_signals.py and test_commands.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiment.commands import main as cli
from experiment.process.interrupts import EndedError, Interrupts, drawing, leaked_segments, shielded
from experiment.process.process_tree import OrphanReaper, new_mark
from experiment.text.errors import ExitCode

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ASKING = (signal.SIGINT, signal.SIGTERM)

pytestmark = pytest.mark.usefixtures("foreground")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_ends_what_is_going_on(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        assert interrupts.exit_code is None
        with pytest.raises(EndedError):
            signal.raise_signal(number)
        assert interrupts.exit_code == 128 + number
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert {signal.getsignal(one) for one in NUMBERS[1:]} == {signal.SIG_DFL}


@pytest.mark.parametrize("number", NUMBERS)
def test_what_the_parent_ignored_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(number)
        assert interrupts.exit_code is None
    assert signal.getsignal(number) is signal.SIG_IGN


@pytest.mark.parametrize("number", ASKING)
def test_a_second_wish_kills_what_runs_and_breaks_off_nothing_else(
    number: signal.Signals, below: subprocess.Popen[bytes]
) -> None:
    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGINT)
        assert below.poll() is None
        signal.raise_signal(number)
        assert below.wait(10) == -signal.SIGKILL
        assert interrupts.exit_code == ExitCode.INTERRUPTED  # the first one's


@pytest.mark.parametrize("first", NUMBERS)
def test_a_terminal_that_is_told_to_be_gone_again_is_no_second_wish(
    first: signal.Signals, below: subprocess.Popen[bytes]
) -> None:
    """The system tells it, the shell tells it, and a session that ends tells it behind SIGTERM."""
    with Interrupts() as interrupts:
        with pytest.raises(EndedError):
            signal.raise_signal(first)
        signal.raise_signal(signal.SIGHUP)
        time.sleep(0.05)
        assert below.poll() is None
        drawing()
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.exit_code == 128 + first


@pytest.mark.parametrize("number", ASKING)
@pytest.mark.parametrize("asked_before", [False, True])
def test_drawing_is_left_at_the_next_wish(number: signal.Signals, asked_before: bool) -> None:
    with Interrupts():
        if asked_before:
            with pytest.raises(EndedError):
                signal.raise_signal(signal.SIGINT)
        drawing()
        with pytest.raises(EndedError):
            signal.raise_signal(number)
        with pytest.raises(EndedError):  # and at every one behind it
            signal.raise_signal(number)


def test_a_terminal_that_goes_while_a_report_is_drawn_does_not_leave_it() -> None:
    with Interrupts() as interrupts:
        interrupts.draws()
        signal.raise_signal(signal.SIGHUP)
        assert interrupts.exit_code == ExitCode.HUNG_UP


def test_a_second_wish_spares_who_would_end_what_is_left() -> None:
    """Should the program be killed next."""
    guard = OrphanReaper(new_mark())
    with Interrupts():
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        assert guard._process.poll() is None
    guard.release()
    assert guard._process.poll() == 0


HOLDS = """
import time
from multiprocessing.shared_memory import SharedMemory
kept = SharedMemory(create=True, size=1 << 16)
print(kept.name, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="where Linux keeps it")
def test_a_second_wish_spares_who_gives_back_what_the_others_leave() -> None:
    """Killed as well, it would be started anew by whoever gives something back, and complain."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        place = Path("/dev/shm", process.stdout.readline().strip())
        try:
            with Interrupts():
                with pytest.raises(EndedError):
                    signal.raise_signal(signal.SIGINT)
                assert place.is_file()
                signal.raise_signal(signal.SIGINT)
                assert process.wait(10) == -signal.SIGKILL
            assert leaked_segments() == {place}
            deadline = time.monotonic() + 10
            while place.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert not place.exists()
        finally:
            process.kill()
            place.unlink(missing_ok=True)


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("number", ASKING)
def test_a_signal_waits_behind_a_shield(number: signal.Signals, draws: bool) -> None:
    done: list[str] = []

    def work() -> None:
        with shielded():
            with shielded():
                signal.raise_signal(number)
                done.append("inner")
            done.append("outer")

    with Interrupts() as interrupts:
        if draws:
            interrupts.draws()
        with pytest.raises(EndedError):
            work()
        with shielded():
            pass  # it came once
    assert done == ["inner", "outer"]


def test_a_signal_is_not_lost_where_what_is_shielded_fails() -> None:
    """An error of a terminal that goes, and its signal on top, while a display begins on it."""

    def fail() -> None:
        with shielded():
            signal.raise_signal(signal.SIGTERM)
            raise OSError("the terminal is gone")

    with Interrupts():
        with pytest.raises(EndedError) as raised:
            fail()
        assert isinstance(raised.value.__context__, OSError)
        with shielded():
            pass
        with pytest.raises(OSError, match="again"), shielded():
            raise OSError("again")


def test_a_signal_of_the_inner_run_that_ends_the_outer_command_is_its_own() -> None:
    with Interrupts() as outer:
        with pytest.raises(EndedError), Interrupts():
            signal.raise_signal(signal.SIGTERM)
        assert outer.exit_code == ExitCode.TERMINATED


def test_a_signal_that_the_inner_run_has_answered_is_not_the_outer_commands() -> None:
    with Interrupts() as outer:
        with Interrupts() as inner:
            with pytest.raises(EndedError):
                signal.raise_signal(signal.SIGTERM)
            assert inner.exit_code == ExitCode.TERMINATED
        assert outer.exit_code is None
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGINT)


def test_without_a_command_nothing_is_shielded() -> None:
    drawing()
    with pytest.raises(KeyboardInterrupt), shielded():
        signal.raise_signal(signal.SIGINT)


Answer = Callable[..., int]


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """Let the program do something else than its words say."""
    monkeypatch.setattr(cli, "_dispatch", answer)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_command_that_says_nothing_of_it_ends_with_the_signals_code(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(monkeypatch, lambda *_: signal.raise_signal(number) or 0)  # type: ignore[func-returns-value]
    assert cli.main(["plan", "--lang", "en"]) == 128 + number
    assert capsys.readouterr().err == "Interrupted.\n"


def test_a_command_that_kept_what_it_found_ends_with_the_signals_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keeps(*_: object) -> int:
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGTERM)
        return ExitCode.INTERRUPTED

    answering(monkeypatch, keeps)
    assert cli.main(["plan", "--lang", "en"]) == ExitCode.TERMINATED


def test_a_signal_in_the_last_moment_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there, and the program's own hands are not yet off the signals."""
    leave = Interrupts.__exit__

    def late(self: Interrupts, *error: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            leave(self, *error)  # type: ignore[arg-type]

    answering(monkeypatch, lambda *_: 0)
    monkeypatch.setattr(Interrupts, "__exit__", late)
    assert cli.main(["plan", "--lang", "en"]) == ExitCode.TERMINATED


HOOK = """
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "experiment.text":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Hook())
"""


@pytest.mark.parametrize("words", [["run_experiment.py"], ["-m", "experiment"]])
def test_ctrl_c_while_the_program_is_imported_is_no_traceback(
    words: list[str], tmp_path: Path
) -> None:
    code = HOOK + (
        "import runpy\n"
        "sys.argv = ['x', '--yes']\n"
        + (
            f"runpy.run_path({words[0]!r}, run_name='__main__')"
            if len(words) == 1
            else "from experiment.__main__ import entry; sys.exit(entry())"
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (ExitCode.INTERRUPTED, "", "")
