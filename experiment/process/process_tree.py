"""What a child process has started, wherever it has gone: found, and ended by its own ids.

    below it      for as long as every parent in between lives
    its session   who was left behind there by a parent that has ended
    its mark      a variable that everything below it inherits, however it was started
    met           who was seen below it while it lived, should somebody have dropped the mark

A process that began a session of its own and whose parent has died is below nobody. Its mark says
whose it is; since no other process has it, nothing else is ever ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

import experiment
from experiment.process.environment import child_environment
from experiment.process.shared_memory import is_tracker, remove_segments, segments_of

GRACE_S = 3.0
_POLL_S = 0.01
_GUARD = Path(__file__).resolve().with_name("orphan_reaper.py")
# What is being ended may start something at that moment; nobody does so for ever.
_ROUNDS = 5


def new_mark() -> str:
    """Name of a variable that no other process has. A child of a child has one of each."""
    return f"PAGEDKV_CHILD_{secrets.token_hex(8)}"


def descendants(pid: int) -> list[psutil.Process]:
    """Every process below ``pid``."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def session_members(leader: int) -> list[psutil.Process]:
    """Processes of the session that a child began which has ended and was waited for.

    Its number is given away again only when nobody of that session is left: who has it now is a
    stranger, and so is the session.
    """
    members: list[psutil.Process] = []
    if hasattr(os, "getsid") and not psutil.pid_exists(leader):
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if os.getsid(process.pid) == leader and runs(process):
                    members.append(process)
    return members


def marked(mark: str) -> list[psutil.Process]:
    """Processes that were started with this mark, the child itself included while it lives."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or is somebody else's
            if mark in process.environ():
                found.append(process)
    return found


def end_marked(mark: str, shared: Iterable[Path] = ()) -> None:
    """End every process with this mark, and give back shared memory: theirs, and ``shared``."""
    left = set(shared)
    for _ in range(_ROUNDS):
        found = marked(mark)
        if not found:
            break
        left |= segments_of(found)
        end_processes(found)
    remove_segments(left)


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Terminate processes; kill what does not go.

    Those that give back what the others leave come last: they end by themselves behind them.
    """
    running = set(processes)
    trackers = [process for process in running if is_tracker(process)]
    workers = [process for process in running if process not in trackers]
    for process in workers:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _kill(_running_after(workers, GRACE_S))
    _kill(_running_after(trackers, GRACE_S))


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _running_after(processes, GRACE_S)


def runs(process: psutil.Process) -> bool:
    """Whether it is there and has not ended; who has and was not waited for holds nothing."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _running_after(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Who is still there then; sooner, once nobody is."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if runs(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)
    return left


class OrphanReaper:
    """A process that ends everything with a mark once this one is gone without a word.

    Who is killed outright can end nobody any more, and the system ends no more than the child
    itself. It sleeps in a session of its own and costs no time meanwhile (``orphan_reaper``).

    Args:
        mark: of what it is to end.
        scratch: a directory that goes with it.

    Raises:
        OSError: the system makes no process more.
    """

    def __init__(self, mark: str, scratch: Path | None = None) -> None:
        root = Path(experiment.__file__).resolve().parent.parent
        paths = [str(root), *map(os.path.abspath, filter(None, sys.path))]
        # The others' streams are not its own: a pipe that it holds would never come to its end.
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-I", "-S", str(_GUARD), mark, str(scratch or ""), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment({}),
            bufsize=0,
            start_new_session=True,
        )

    def tell(self, shared: Iterable[Path]) -> None:
        """Name shared memory that it is to give back, as the child may be dead before it looks."""
        self._say("".join(f"{path}\n" for path in shared))

    def release(self) -> None:
        """Everything has been ended: so does it."""
        self._say(".\n")
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed it
            self._process.stdin.write(text.encode())


def is_guard(process: psutil.Process) -> bool:
    """Whether it is one that waits for this program to be gone."""
    try:
        return str(_GUARD) in process.cmdline()
    except psutil.Error:
        return False
