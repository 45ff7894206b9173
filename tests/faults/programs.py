"""Starts whole programs to be broken, and looks for what they left behind."""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from real_parts import is_gone

from experiment.events import ArmFinished, ArmStarted, Event, RunFinished, Step
from experiment.record.log import EVENTS_FILE, read_record
from experiment.text.errors import UserError

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ARMS = ("contiguous.batch", "paged")
FIRST, SECOND = ARMS
SHM = Path("/dev/shm")
DEADLINE_S = 60.0
LINGER_S = 10.0
Seen = Callable[[list[Event]], bool]


def soon(is_so: Callable[[], Any], deadline_s: float = DEADLINE_S) -> Any:
    """What is found within some time."""
    deadline = time.monotonic() + deadline_s
    while not (found := is_so()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


@dataclass
class Program:
    """A program that runs, its directory, what was there before it, and our end of its terminal."""

    process: subprocess.Popen[str]
    out: Path
    shared: frozenset[str]
    scratch: Path
    terminal: int | None

    def wait_for(self, seen: Seen) -> list[Event]:
        """Wait until the log holds what is looked for."""
        deadline, log, size = time.monotonic() + DEADLINE_S, self.out / EVENTS_FILE, 0
        while True:
            before, size = size, log.stat().st_size if log.exists() else 0
            if size > before and seen(found := events_of(self.out)):
                return found
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "it never came to that"
            time.sleep(0.01)

    def read_until(self, text: str) -> None:
        """Read what is printed to the terminal until a text is there."""
        assert self.terminal is not None
        seen = ""
        while text not in seen:
            ready, _, _ = select.select([self.terminal], [], [], DEADLINE_S)
            assert ready, seen
            seen += os.read(self.terminal, 65536).decode("utf-8", "replace")

    def answer(self, text: str) -> None:
        """Type a line."""
        assert self.terminal is not None
        os.write(self.terminal, f"{text}\n".encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        if self.terminal is not None:
            os.close(self.terminal)
        self.terminal = None

    @property
    def pids(self) -> list[int]:
        """Processes that the log names."""
        return [event.pid for event in events_of(self.out) if isinstance(event, ArmStarted)]

    def end(self) -> tuple[int, str, str]:
        """Exit code and what was printed, once the program and all below it are gone."""
        try:
            out, err = self.process.communicate(timeout=DEADLINE_S)
        finally:
            self.process.kill()
            self.hang_up()
        self.nothing_is_left()
        return self.process.returncode, out or "", err or ""

    def nothing_is_left(self) -> None:
        """No process that the log names, no shared memory, no temporary file."""
        assert all(map(is_gone, self.pids))
        # Other tests of this machine have segments too, and take them down within seconds.
        assert soon(lambda: shared_memory() <= self.shared, LINGER_S), shared_memory() - self.shared
        # Of a program that was killed a process of its own removes them, when all are gone.
        assert soon(lambda: not list(self.scratch.iterdir()), LINGER_S)


def shared_memory() -> frozenset[str]:
    """Names of what Python and torch have there and no process holds any more.

    A holder is known by the inode: who creates a semaphore maps it under a name that is gone.
    """
    found = {}
    for path in (path for kind in ("psm_*", "torch_*", "sem.*") for path in SHM.glob(kind)):
        with contextlib.suppress(FileNotFoundError):
            found[str(path.stat().st_ino)] = path.name
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            for line in maps.read_text("utf-8", "replace").splitlines():
                if f"{SHM}/" in line:
                    found.pop(line.split()[4], None)
    return frozenset(found.values())


def events_of(out: Path) -> list[Event]:
    try:
        return list(read_record(out).events)
    except UserError:
        return []


def begun(arm: str) -> Seen:
    return lambda events: any(isinstance(e, ArmStarted) and e.arm == arm for e in events)


def arm_steps(arm: str) -> Seen:
    """Seen: the arm is in the middle of its work."""
    return lambda events: any(isinstance(e, Step) and e.arm == arm for e in events)


def arm_ended(arm: str) -> Seen:
    return lambda events: any(isinstance(e, ArmFinished) and e.arm == arm for e in events)


def run_ended(events: list[Event]) -> bool:
    """Seen: the log has its end, and the report is drawn."""
    return any(isinstance(event, RunFinished) for event in events)


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


class Starter:
    """Starts programs: the door with arms of :mod:`scripted_arm`, or the program itself."""

    def __init__(self, place: Path, environment: dict[str, Any]) -> None:
        self.place = place
        self.environment = environment
        self.started: list[Program] = []
        self.note = place / "note"

    def __call__(
        self,
        *words: str,
        out: Path | None = None,
        terminal: bool = False,
        preexec: Callable[[], object] = take_interrupts,
        **changes: Any,
    ) -> Program:
        """Start a run of two arms into ``out``, go on with one, or give a command of its own.

        ``changes`` are those of what the door is told, see :func:`door.arrange`.
        """
        told = self.place / f"told-{len(self.started)}.json"
        data = {"environment": self.environment, "note": str(self.note), "scripts": {},
                "pause_s": 0.0, "model": {}, "hang_in": "", "signal_in": "",
                "clock_jumps": False, "others": [0.0]}  # fmt: skip
        assert changes.keys() <= data.keys()
        told.write_text(json.dumps(data | changes), encoding="utf-8")
        out = out or self.place / "out"
        if "--resume" not in words and not (words and words[0][0] != "-"):
            words = ("--arms", ",".join(ARMS), "--out", str(out), *(words or ("--yes",)))
        door = (str(HERE / "door.py"), str(told))
        return self.run(*door, *words, out=out, terminal=terminal, preexec=preexec)

    def run(
        self,
        *words: str,
        out: Path,
        terminal: bool = False,
        preexec: Callable[[], object] = take_interrupts,
    ) -> Program:
        """Start a script; in a terminal it leads the session of a new one."""
        scratch = Path(tempfile.mkdtemp(prefix="tmp-"))  # short: a socket's path has room in it
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        ends: dict[str, int] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                "stderr": subprocess.PIPE}  # fmt: skip
        variables = {**os.environ, "TMPDIR": str(scratch), "CI": "", "COLUMNS": "200"}
        variables["PYTHONPATH"] = os.pathsep.join((str(HERE.parent), str(HERE)))
        ours = theirs = None
        if terminal:
            ours, theirs = pty.openpty()
            variables["TERM"] = "xterm"
            ends, preexec = dict.fromkeys(ends, theirs), take_the_terminal
        shared = shared_memory()
        process = subprocess.Popen(
            [sys.executable, *words, "--lang", "en"], text=True, encoding="utf-8",
            errors="replace", env=variables, cwd=self.place, preexec_fn=preexec, **ends,
        )  # fmt: skip
        if theirs is not None:
            os.close(theirs)
        self.started.append(Program(process, out, shared, scratch, ours))
        return self.started[-1]

    def clean_up(self) -> None:
        """End what a test that failed has left running."""
        for program in self.started:
            program.process.kill()
            program.process.wait()
