"""Process-tree tracking and cleanup of child processes.

    descendants     while all parents in between live
    session         processes left behind by a parent that has ended
    mark            an environment variable inherited by everything below a child
    observed        processes seen below the child that may have dropped the mark

A process with its own session whose parent has died is no descendant; its mark identifies it.
The mark is unique, so that no other process is ever ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import psutil

import experiment
from experiment.process.environment import child_environment
from experiment.process.shared_memory import is_tracker, remove_segments, segments_of

GRACE_S = 3.0
_POLL_S = 0.01
_REAPER_SCRIPT = Path(__file__).resolve().with_name("orphan_reaper.py")
# A process that is being ended may start another one meanwhile.
_ROUNDS = 5


def new_mark() -> str:
    """Name of an environment variable that is unique to a child. Nested children have several."""
    return f"PAGEDKV_CHILD_{secrets.token_hex(8)}"


def descendants(pid: int) -> list[psutil.Process]:
    """All processes below ``pid``.

    Linux lists the children of each thread. Elsewhere, psutil scans all processes of the machine,
    which takes milliseconds.
    """
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        if not _lists_children():
            return psutil.Process(pid).children(recursive=True)
        for child in _children(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [psutil.Process(child), *descendants(child)]
    return found


@cache
def _lists_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                found += map(int, (task / "children").read_bytes().split())
    return found


def session_members(leader: int) -> list[psutil.Process]:
    """Other processes in the session of ``leader``, whatever their parents, which may have ended.

    The session id is reused only when the session is empty.
    """
    members: list[psutil.Process] = []
    for pid in psutil.pids() if hasattr(os, "getsid") else ():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if pid != leader and os.getsid(pid) == leader:
                members.append(psutil.Process(pid))
    return members


def processes_with_mark(mark: str) -> list[psutil.Process]:
    """Processes with this mark, the child included while it lives."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
            if mark in process.environ():
                found.append(process)
    return found


def end_marked(mark: str, shared: Iterable[Path] = ()) -> None:
    """End every process with this mark; remove its shared memory and ``shared``."""
    left = set(shared)
    for _ in range(_ROUNDS):
        found = processes_with_mark(mark)
        if not found:
            break
        left |= segments_of(found)
        end_processes(found)
    remove_segments(left)


def end_processes(processes: Iterable[psutil.Process]) -> None:
    """Terminate processes, and kill those that do not end.

    Resource trackers come last: they clean up after the others and end by themselves.
    """
    running = set(processes)
    trackers = [process for process in running if is_tracker(process)]
    workers = [process for process in running if process not in trackers]
    for process in workers:
        terminate(process)
    for process in trackers:
        with contextlib.suppress(psutil.Error):
            process.resume()
    _kill(_wait_for_exit(workers, GRACE_S))
    _kill(_wait_for_exit(trackers, GRACE_S))


def terminate(process: psutil.Process) -> None:
    """Send SIGTERM, which a stopped process receives when it continues."""
    with contextlib.suppress(psutil.Error):
        process.terminate()
        process.resume()


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    _wait_for_exit(processes, GRACE_S)


def is_running(process: psutil.Process) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _wait_for_exit(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Processes that still run after at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if is_running(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)
    return left


class OrphanReaper:
    """A process that ends everything with a mark if this program dies.

    A killed program cannot end its children, and the system ends only the direct child. The reaper
    sleeps in its own session (``orphan_reaper``).

    Args:
        mark: of the processes to end.
        scratch: directory to remove with them.

    Raises:
        OSError: the system cannot start a process.
    """

    def __init__(self, mark: str, scratch: Path | None = None) -> None:
        root = Path(experiment.__file__).resolve().parent.parent
        paths = [str(root), *map(os.path.abspath, filter(None, sys.path))]
        # No inherited streams: a pipe held by the reaper would never reach its end.
        self._process = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-I", "-S", str(_REAPER_SCRIPT), mark, str(scratch or ""), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment({}),
            bufsize=0,
            start_new_session=True,
        )

    def add_shared(self, shared: Iterable[Path]) -> None:
        """Register shared memory to remove; the child may be dead before the reaper looks."""
        self._send("".join(f"{path}\n" for path in shared))

    def release(self) -> None:
        """End the reaper: everything has been cleaned up."""
        self._send(".\n")
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the reaper was killed
            self._process.stdin.write(text.encode())


def is_reaper(process: psutil.Process) -> bool:
    """Whether the process is an orphan reaper."""
    try:
        return str(_REAPER_SCRIPT) in process.cmdline()
    except psutil.Error:
        return False
