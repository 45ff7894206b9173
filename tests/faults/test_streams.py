"""Whoever reads what is printed goes: a terminal that closes, a pipe that is left."""

from __future__ import annotations

import errno
import io
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from programs import ARMS, Starter, arm_steps, take_interrupts

from experiment.analysis.conclusions import evaluate
from experiment.commands import main as cli
from experiment.commands.menu import choose, shipped
from experiment.events import RunFinished
from experiment.process.interrupts import EndedError, Interrupts, answer
from experiment.process.streams import ignore_broken_pipe
from experiment.record.log import read_record
from experiment.text import Translator
from experiment.text.errors import ExitCode

ROOT = Path(__file__).parents[2]


@contextmanager
def printing_to(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Our output is a file of its own while this lasts; a terminal's is written line by line."""
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as file:
        monkeypatch.setattr(sys, "stdout", file)
        try:
            yield file
        finally:
            monkeypatch.undo()
            with Path(os.devnull).open(
                "wb"
            ) as nowhere:  # what could not be written stays unwritten
                os.dup2(nowhere.fileno(), file.fileno())


def a_closed_terminal() -> int:
    ours, theirs = pty.openpty()
    os.close(ours)
    return theirs


@pytest.fixture(autouse=True)
def _nobody_wants_sighup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_an_error_of_a_terminal_that_is_gone_is_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with printing_to(a_closed_terminal(), monkeypatch), Interrupts() as interrupts:
        with ignore_broken_pipe():
            with pytest.raises(EndedError):
                print("nobody reads this", flush=True)
            print("nor this, and that is no error", flush=True)
        assert interrupts.exit_code == ExitCode.HUNG_UP


def test_what_a_thread_prints_to_it_ends_the_command_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Displays are drawn by a thread; the error would end that one alone."""

    def wait_for_the_end() -> None:
        thread = threading.Thread(target=lambda: print("nobody reads this", flush=True))
        thread.start()
        thread.join()
        threading.Event().wait(10)

    with (
        printing_to(a_closed_terminal(), monkeypatch),
        Interrupts() as interrupts,
        ignore_broken_pipe(),
    ):
        with pytest.raises(EndedError):
            wait_for_the_end()
        assert interrupts.exit_code == ExitCode.HUNG_UP


def test_where_its_signal_is_ignored_the_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with (
        printing_to(a_closed_terminal(), monkeypatch),
        Interrupts() as interrupts,
        ignore_broken_pipe(),
    ):
        print("nobody reads this", flush=True)
        print("nor this", flush=True)
        assert interrupts.exit_code is None


FULL = Path("/dev/full")


@pytest.fixture
def full() -> int:
    """Where there is never any room."""
    if not FULL.exists():
        pytest.skip("this system has no /dev/full")
    return os.open(FULL, os.O_WRONLY)


@pytest.mark.parametrize("code", [ExitCode.OK, ExitCode.INCOMPLETE])
def test_a_command_goes_on_where_the_disk_is_full_to_which_it_prints(
    code: int, full: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it finds is worth more than what it tells; at its end it says so."""
    done: list[str] = []

    def answer(*_: object) -> int:
        for number in range(2):
            print("this is not kept", flush=bool(number))
            done.append("and goes on")
        return code

    monkeypatch.setattr(cli, "_dispatch", answer)
    with printing_to(full, monkeypatch):
        ended = cli.main(["plan", "--lang", "en"])
    assert len(done) == 2
    assert ended == (code or ExitCode.UNWRITABLE)
    assert capsys.readouterr().err == "Error: stdout cannot be written: the disk is full.\n"


@pytest.mark.parametrize("word", ["--list-experiments", "--help"])
def test_what_is_printed_at_the_very_end_is_not_lost_without_a_word(word: str, full: int) -> None:
    """It stands in a buffer until then."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), word, "--lang", "en"],
        stdout=full, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    os.close(full)
    assert done.returncode == ExitCode.UNWRITABLE
    assert done.stderr == "Error: stdout cannot be written: the disk is full.\n"


def test_a_failing_disk_is_no_terminal_that_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both give the same error; what is printed into a file is not lost without a word."""

    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def fileno(self) -> int:
            return file.fileno()

    with (tmp_path / "out").open("w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdout", Failing())
        lost: list[OSError] = []
        with Interrupts() as interrupts, ignore_broken_pipe(lost):
            print("this is not kept")
            print("nor is this")
            assert interrupts.exit_code is None
        assert [error.errno for error in lost] == [errno.EIO]


def test_a_file_goes_on_being_written_when_the_terminal_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    with printing_to(os.open(kept, os.O_WRONLY | os.O_CREAT), monkeypatch), Interrupts():
        with pytest.raises(EndedError):
            signal.raise_signal(signal.SIGHUP)
        print("what was found until then")
    assert kept.read_text(encoding="utf-8") == "what was found until then\n"


def test_a_run_whose_reader_has_seen_enough_goes_on(start: Starter) -> None:
    """As `| head` does."""
    program = start("--yes", pause_s=0.1)
    program.wait_for(arm_steps(ARMS[0]))
    assert program.process.stdout is not None
    program.process.stdout.close()
    program.process.stdout = None
    code, _, err = program.end()
    assert (code, err) == (ExitCode.OK, "")
    record = read_record(program.out)
    assert record.of(RunFinished)[-1].status == "complete"
    assert [arm.status for arm in evaluate(record).arms] == ["finished"] * 2
    assert (program.out / "report.html").exists()


@contextmanager
def reading_from(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our input is a file of its own while this lasts."""
    with os.fdopen(descriptor, encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        yield


def fail(*_: object) -> str:
    """What reading from a terminal that is gone, or from a failing disk, does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_terminal_that_goes_while_the_menu_asks_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading from it may fail before its signal is there."""
    monkeypatch.setattr("builtins.input", fail)
    monkeypatch.setattr(cli, "_asked_for_nothing", lambda *_: True)
    with reading_from(a_closed_terminal(), monkeypatch):
        assert cli.main(["--lang", "en"]) == ExitCode.HUNG_UP


@pytest.mark.parametrize("whose", ["a command", "nobody"])
def test_an_answer_of_a_terminal_that_is_gone_is_its_end(
    whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not left to the signal, which may come late or, under `nohup`, never."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    taken = Interrupts()
    with reading_from(a_closed_terminal(), monkeypatch):
        with taken if whose == "a command" else nullcontext(), pytest.raises(EndedError):
            answer(fail)
        assert (taken.exit_code == ExitCode.HUNG_UP) == (whose == "a command")


def test_a_failing_disk_is_no_terminal_that_answers_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "answers").touch()
    given = os.open(tmp_path / "answers", os.O_RDONLY)
    with Interrupts() as taken, reading_from(given, monkeypatch):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            answer(fail)
        assert taken.exit_code is None


def test_input_that_is_at_its_end_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with reading_from(os.open(os.devnull, os.O_RDONLY), monkeypatch):
        assert answer(input) == ""


def test_a_signal_that_input_drops_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised while ``input()`` flushes; at a gate the run would go on."""

    class Flushed(io.StringIO):
        def flush(self) -> None:
            if sys.exc_info() == (None, None, None):
                signal.raise_signal(signal.SIGHUP)

    with reading_from(os.open(os.devnull, os.O_RDONLY), monkeypatch), Interrupts():
        monkeypatch.setattr(sys, "stdout", Flushed())
        with pytest.raises(EndedError):
            answer(input)


def test_a_number_without_end_is_no_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["7" * 5000, "q"])
    monkeypatch.setattr("builtins.input", lambda: next(said))
    assert choose(Translator("en")) is None
    assert Translator("en")("menu.again", n=len(shipped())) in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--help"], ["--list-experiments"], ["simulate", "--list", "models"]]
)
def test_what_is_listed_for_nobody_is_no_error(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_experiment.py"), *words, "--lang", "en"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=take_interrupts,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (ExitCode.OK, b"")
