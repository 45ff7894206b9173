"""Starts whole programs to be broken, and looks for what they left behind."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from real_parts import is_gone

from experiment.events import ArmFinished, ArmStarted, Event, Step
from experiment.process.shared_memory import segments_of
from experiment.record.log import read_record
from experiment.text.errors import UserError

HERE = Path(__file__).parent
ARMS = ("contiguous.batch", "paged")
SHM = Path("/dev/shm")
DEADLINE_S = 60.0
LINGER_S = 10.0


@dataclass
class Program:
    """A program that runs, its directory, and what was there before it."""

    process: subprocess.Popen[str]
    out: Path
    shared: frozenset[str]
    scratch: Path
    deadline_s: float = DEADLINE_S

    def wait_for(self, seen: Callable[[list[Event]], bool]) -> list[Event]:
        """Wait until the log holds what is looked for."""
        deadline = time.monotonic() + self.deadline_s
        while time.monotonic() < deadline:
            found = events_of(self.out)
            if seen(found):
                return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        self.process.kill()
        raise AssertionError("it never came to that")

    def end(self) -> tuple[int, str, str]:
        """Exit code and what was printed, once the program and all below it are gone."""
        try:
            out, err = self.process.communicate(timeout=self.deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.nothing_is_left()
        return self.process.returncode, out, err

    def nothing_is_left(self) -> None:
        """No process that the log names, no shared memory, no temporary file."""
        pids = [event.pid for event in events_of(self.out) if isinstance(event, ArmStarted)]
        assert not [pid for pid in pids if not is_gone(pid)]
        no_shared_memory_is_left(self.shared)
        # Of a program that was killed a process of its own removes them, when all are gone.
        deadline = time.monotonic() + LINGER_S
        while list(self.scratch.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert list(self.scratch.iterdir()) == []


def short_directory() -> Path:
    """Where a program puts temporary files: a socket's path has room in it. Gone with the tests."""
    made = Path(tempfile.mkdtemp(prefix="tmp-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def shared_memory() -> frozenset[str]:
    """Names of what Python and torch have there and no process holds any more."""
    names = (path for kind in ("psm_*", "torch_*", "sem.*") for path in SHM.glob(kind))
    found = set(names)
    return frozenset(path.name for path in found - segments_of(psutil.process_iter()))


def no_shared_memory_is_left(before: frozenset[str]) -> None:
    """None but what was there before."""
    # Other tests of this machine have segments too, and take them down within seconds.
    deadline = time.monotonic() + LINGER_S
    while not shared_memory() <= before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert shared_memory() <= before


def events_of(out: Path) -> list[Event]:
    try:
        return list(read_record(out).events)
    except UserError:
        return []


def arm_steps(arm: str) -> Callable[[list[Event]], bool]:
    """Seen: the arm is in the middle of its work."""
    return lambda events: any(isinstance(e, Step) and e.arm == arm for e in events)


def arm_ended(arm: str) -> Callable[[list[Event]], bool]:
    return lambda events: any(isinstance(e, ArmFinished) and e.arm == arm for e in events)


def take_interrupts() -> None:
    """Whoever runs the tests in the background has them ignored, and so would the program."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def take_the_terminal() -> None:
    """Lead the session of the terminal that is printed to, so that its end is told to us."""
    if os.getsid(0) != os.getpid():
        os.setsid()
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)
    take_interrupts()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as under `nohup` it is not


def in_a_terminal(start: Starter, *words: str, **options: Any) -> tuple[Program, int]:
    """A program that leads the session of a new terminal; closing our end closes it."""
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    program = start(*words, preexec_fn=take_the_terminal, env={"CI": ""}, **ends, **options)
    os.close(theirs)
    return program, ours


def read_until(terminal: int, text: str) -> None:
    """Read what is printed to a terminal until a text is there."""
    seen = ""
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], DEADLINE_S)
        assert ready, seen
        seen += os.read(terminal, 65536).decode("utf-8", "replace")


class Starter:
    """Starts the program with arms of :mod:`scripted_arm`."""

    def __init__(self, place: Path, environment: dict[str, Any]) -> None:
        self.place = place
        self.environment = environment
        self.started: list[Program] = []
        self.note = place / "note"

    def __call__(
        self,
        *words: str,
        scripts: dict[str, str] | None = None,
        pause_s: float = 0.0,
        model: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        hang_in: str = "",
        signal_in: str = "",
        clock_jumps: bool = False,
        others: Sequence[float] = (0.0,),
        out: Path | None = None,
        **options: Any,
    ) -> Program:
        """Start a run of two arms into ``out``, go on with one, or give a command of its own.

        ``others`` are cores that other programs keep busy, look by look; the last one stays.
        ``options`` are Popen's.
        """
        told = self.place / f"told-{len(self.started)}.json"
        data = {"environment": environment or self.environment, "scripts": scripts or {},
                "pause_s": pause_s, "model": model or {}, "note": str(self.note),
                "hang_in": hang_in, "signal_in": signal_in, "clock_jumps": clock_jumps,
                "others": list(others)}  # fmt: skip
        told.write_text(json.dumps(data), encoding="utf-8")
        out = out or self.place / "out"
        given = (
            words
            if "--resume" in words or (words and not words[0].startswith("-"))
            else (*("--arms", ",".join(ARMS), "--out", str(out)), *(words or ("--yes",)))
        )
        scratch = short_directory()
        variables = {**os.environ, "TMPDIR": str(scratch), **options.pop("env", {})}
        variables["PYTHONPATH"] = os.pathsep.join((str(HERE.parent), str(HERE)))
        shared = shared_memory()
        process = subprocess.Popen(
            [sys.executable, str(HERE / "door.py"), str(told), *given, "--lang", "en"],
            text=True, encoding="utf-8", errors="replace", env=variables,
            **{"preexec_fn": take_interrupts,
               "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE,
               **options},
        )  # fmt: skip
        program = Program(process, out, shared, scratch)
        self.started.append(program)
        return program

    def clean_up(self) -> None:
        """End what a test that failed has left running."""
        for program in self.started:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()
