"""Memory of a process and its descendants.

    root ─┬─ child            RSS   resident pages; a shared page counts for each process
          └─ child ── child   PSS   shared pages divided among their processes (Linux)
                              USS   pages of one process only

The list of processes is refreshed every 500 ms, because finding them is slower than reading the
memory of known ones. Readings at stages always refresh it.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from experiment.memory.figure import MemoryFigure, missing
from experiment.process.process_tree import descendants, session_members
from experiment.text.messages import Message, message

REFRESH_S = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU seconds of a process, and of its children that have ended.

    ``ended`` grows by a child's total when the child is waited for; 0 if the system does not count
    it.
    """

    own: float
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class TreeDetails:
    """Figures that are too expensive for every sample."""

    uss: MemoryFigure
    pss: MemoryFigure


class ProcessTree:
    """Sample the process tree of ``pid``; every figure is unknown once the root has ended."""

    def __init__(self, pid: int, refresh_s: float = REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._refreshed = float("-inf")
        self._members: tuple[Any, ...] = ()
        self._statm: dict[Any, IO[bytes] | None] = {}
        self._root: Any = None  # None: it has ended
        self.observed_processes: set[psutil.Process] = set()  # all that were ever found
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root = psutil.Process(pid)

    def close(self) -> None:
        """Close the cached files; they are reopened on demand."""
        for file in self._statm.values():
            _close(file)
        self._statm = {}

    def pids(self) -> frozenset[int]:
        """Processes of the tree at the last refresh; empty once the root has ended."""
        try:
            self._refresh()
        except psutil.NoSuchProcess:
            return frozenset()
        return frozenset(process.pid for process in self._members)

    def rss(self, *, fresh: bool = False) -> MemoryFigure:
        """Sum of the resident bytes of all processes.

        ``fresh`` refreshes the tree first; otherwise a process younger than 500 ms may be missing.
        """
        return self._sum(self._rss, fresh=fresh)

    def cpu_times(self) -> dict[Any, CpuSeconds]:
        """CPU seconds of each living process since its start.

        The tree is refreshed first, so that new processes are not counted as background load.

        Raises:
            psutil.NoSuchProcess: the root has ended.
            psutil.AccessDenied: no permission to read a process.
        """
        self._refresh(fresh=True)
        times: dict[Any, CpuSeconds] = {}
        for process in self._members:
            try:
                with process.oneshot():
                    # A zombie keeps its times.
                    gone = process.status() == psutil.STATUS_ZOMBIE
                    spent = process.cpu_times()
            except psutil.NoSuchProcess:
                gone = True
            if not gone:
                ended = spent.children_user + spent.children_system
                times[process] = CpuSeconds(spent.user + spent.system, ended)
            elif process == self._root:
                raise psutil.NoSuchProcess(process.pid)
        return times

    def reset_high_water(self) -> Message | None:
        """Reset the root's high-water mark; return the reason if that is impossible."""
        if sys.platform != "linux":
            return message("memory.not_this_os")
        try:
            self._refresh(fresh=True)
            Path(f"/proc/{self._root.pid}/clear_refs").write_text("5", encoding="ascii")
        except (psutil.NoSuchProcess, ProcessLookupError):
            return message("memory.process_gone")
        except (psutil.AccessDenied, PermissionError):
            return message("memory.process_denied")
        except OSError:  # unknown to this kernel, or /proc is read-only
            return message("memory.reset_denied")
        return None

    def details(self) -> TreeDetails:
        """USS and PSS of the tree; takes milliseconds."""
        infos: dict[Any, Any] = {}

        def take(field: str) -> Callable[[Any], int | None]:
            def read(process: Any) -> int | None:
                if process not in infos:
                    infos[process] = process.memory_full_info()
                return getattr(infos[process], field, None)

            return read

        return TreeDetails(
            uss=self._sum(take("uss"), fresh=True),
            pss=self._sum(take("pss"), fresh=False),
        )

    def _rss(self, process: Any) -> int:
        """Resident bytes of one process.

        On Linux its file is kept open: reading it again takes a fifth of the time of opening it.
        """
        file = self._statm.get(process)
        if file is None:
            file = self._statm[process] = open_statm(process)
        if file is None:
            return int(process.memory_info().rss)
        try:
            return int(os.pread(file.fileno(), 256, 0).split()[1]) * _PAGE
        except ProcessLookupError:
            raise psutil.NoSuchProcess(process.pid) from None

    def _sum(self, read: Callable[[Any], int | None], *, fresh: bool) -> MemoryFigure:
        total = 0
        try:
            self._refresh(fresh=fresh)
            for process in self._members:
                size = self._size(process, read)
                if size is None:
                    return missing("memory.not_this_os")
                total += size
        except psutil.NoSuchProcess:
            return missing("memory.process_gone")
        except psutil.AccessDenied:
            return missing("memory.process_denied")
        return MemoryFigure(total)

    def _size(self, process: Any, read: Callable[[Any], int | None]) -> int | None:
        """Bytes of one process; 0 for a child that has ended.

        Raises:
            psutil.NoSuchProcess: the root has ended.
        """
        try:
            size = read(process)
        except psutil.NoSuchProcess:
            size = 0
        # The kernel reports 0 for a zombie.
        if size == 0 and process == self._root:
            raise psutil.NoSuchProcess(process.pid)
        return size

    def high_water(self) -> MemoryFigure:
        """The root's high-water mark, never a sum: peaks of several processes need not coincide."""
        try:
            self._refresh()
            if sys.platform == "win32":
                return MemoryFigure(self._root.memory_info().peak_wset)
            if sys.platform != "linux":
                return missing("memory.not_this_os")
            status = Path(f"/proc/{self._root.pid}/status").read_text(encoding="utf-8")
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return missing("memory.process_gone")
        except (psutil.AccessDenied, PermissionError):
            return missing("memory.process_denied")
        found = _HIGH_WATER.search(status)
        # The status of a zombie has no memory fields.
        return MemoryFigure(int(found[1]) * 1024) if found else missing("memory.process_gone")

    def _exists(self, process: Any) -> bool:
        """Whether a process exists, as a zombie too; False if its pid was reused."""
        file = self._statm.get(process)
        if file is None:
            return bool(process.is_running())  # compares start times; three times slower
        try:
            return bool(os.pread(file.fileno(), 1, 0))
        except ProcessLookupError:
            return False

    def _refresh(self, *, fresh: bool = False) -> None:
        """Refresh the list of processes; ``fresh``: even if the last refresh is recent."""
        now = time.monotonic()
        if not fresh and now - self._refreshed < self._refresh_s:
            return
        if self._root is None or not self._exists(self._root):
            self._root, self._members, self._refreshed = None, (), float("-inf")
            self.close()
            raise psutil.NoSuchProcess(0)
        known = {process: process for process in self._members}
        # Those whose parent has ended are in the session only.
        below = dict.fromkeys((*descendants(self._root.pid), *session_members(self._root.pid)))
        self._members = (self._root, *(known.get(child, child) for child in below))
        self.observed_processes.update(self._members)
        for ended in self._statm.keys() - set(self._members):
            _close(self._statm.pop(ended))
        self._refreshed = now


def open_statm(process: Any) -> IO[bytes] | None:
    """Open the file with the resident pages of a process; None if there is none.

    Reading it fails once the process has ended.

    Raises:
        psutil.NoSuchProcess: the process has ended.
    """
    if sys.platform != "linux":
        return None
    try:
        file = Path(f"/proc/{process.pid}/statm").open("rb", buffering=0)  # noqa: SIM115 - kept
    except OSError:
        return None
    if process.is_running():  # otherwise the pid may have been reused before opening
        return file
    file.close()
    raise psutil.NoSuchProcess(process.pid)


def _close(file: IO[bytes] | None) -> None:
    if file is not None:
        file.close()
