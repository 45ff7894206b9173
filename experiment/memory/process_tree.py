"""Memory of a process and its descendants.

    root ─┬─ child            RSS   resident pages; a shared page counts for each process
          └─ child ── child   PSS   shared pages divided among their processes (Linux)
                              USS   pages of one process only

The list of processes is refreshed every 500 ms, because finding them is slower than reading the
memory of known ones. Readings at stages always refresh it.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from experiment.memory.figure import MemoryFigure, UnreadableError, process_errors, unreadable
from experiment.process.process_tree import descendants, session_members
from experiment.text.messages import Message, message

REFRESH_S = 0.5
_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU seconds of a process, and of its children that have ended.

    ``ended`` grows by a child's total when the child is waited for; 0 if the system does not count
    it.
    """

    own: float
    ended: float = 0.0


class ProcessTree:
    """Sample the process tree of ``pid``; figures are unreadable once the root has ended."""

    def __init__(self, pid: int, refresh_s: float = REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._refreshed = float("-inf")
        self._members: tuple[Any, ...] = ()
        self._root: Any = None  # None: it has ended
        self.observed_processes: set[psutil.Process] = set()  # all that were ever found
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root = psutil.Process(pid)

    def pids(self) -> frozenset[int]:
        """Processes of the tree at the last refresh; empty once the root has ended."""
        with contextlib.suppress(UnreadableError):
            self._refresh()
            return frozenset(process.pid for process in self._members)
        return frozenset()

    def rss(self, *, fresh: bool = False) -> MemoryFigure:
        """Sum of the resident bytes of all processes.

        ``fresh`` refreshes the tree first; otherwise a process younger than 500 ms may be missing.
        """
        return self._sum(lambda process: int(process.memory_info().rss), fresh=fresh)

    def cpu_times(self) -> dict[Any, CpuSeconds]:
        """CPU seconds of each living process since its start.

        The tree is refreshed first, so that new processes are not counted as background load.

        Raises:
            UnreadableError: the root has ended, or a process may not be read.
        """
        self._refresh(fresh=True)
        times: dict[Any, CpuSeconds] = {}
        for process in self._members:
            with process_errors(), self._unless_a_child_ended(process), process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:  # it keeps its times
                    raise psutil.NoSuchProcess(process.pid)
                spent = process.cpu_times()
                ended = spent.children_user + spent.children_system
                times[process] = CpuSeconds(spent.user + spent.system, ended)
        return times

    @contextlib.contextmanager
    def _unless_a_child_ended(self, process: Any) -> Iterator[None]:
        try:
            yield
        except psutil.NoSuchProcess:
            if process == self._root:
                raise

    def reset_high_water(self) -> Message | None:
        """Reset the root's high-water mark; return the reason if that is impossible."""
        if sys.platform != "linux":
            return message("memory.not_this_os")
        try:
            self._refresh(fresh=True)
            with process_errors():
                Path(f"/proc/{self._root.pid}/clear_refs").write_text("5", encoding="ascii")
        except UnreadableError as error:
            return error.reason
        except OSError:  # unknown to this kernel, or /proc is read-only
            return message("memory.reset_denied")
        return None

    def details(self) -> dict[str, Callable[[], MemoryFigure]]:
        """Readers of USS and PSS of the tree, of one look that takes milliseconds."""
        infos: dict[Any, Any] = {}

        def read(field: str, process: Any) -> int | None:
            if process not in infos:
                infos[process] = process.memory_full_info()
            return getattr(infos[process], field, None)

        return {
            "uss": lambda: self._sum(partial(read, "uss"), fresh=True),
            "pss": lambda: self._sum(partial(read, "pss"), fresh=False),
        }

    def _sum(self, read: Callable[[Any], int | None], *, fresh: bool) -> MemoryFigure:
        self._refresh(fresh=fresh)
        total = 0
        for process in self._members:
            with process_errors(), self._unless_a_child_ended(process):
                size = read(process)
                if size is None:
                    raise unreadable("memory.not_this_os")
                if size == 0:  # the kernel reports 0 for a zombie
                    raise psutil.NoSuchProcess(process.pid)
                total += size
        return MemoryFigure(total)

    def high_water(self) -> MemoryFigure:
        """The root's high-water mark, never a sum: peaks of several processes need not coincide."""
        self._refresh()
        with process_errors():
            if sys.platform == "win32":
                return MemoryFigure(self._root.memory_info().peak_wset)
            if sys.platform != "linux":
                raise unreadable("memory.not_this_os")
            status = Path(f"/proc/{self._root.pid}/status").read_text(encoding="utf-8")
        found = _HIGH_WATER.search(status)
        if found is None:  # the status of a zombie has no memory fields
            raise unreadable("memory.process_gone")
        return MemoryFigure(int(found[1]) * 1024)

    def _refresh(self, *, fresh: bool = False) -> None:
        """Refresh the list of processes; ``fresh``: even if the last refresh is recent."""
        now = time.monotonic()
        if not fresh and now - self._refreshed < self._refresh_s:
            return
        # A zombie is running, another process with its pid is not.
        if self._root is None or not self._root.is_running():
            self._root, self._members, self._refreshed = None, (), float("-inf")
            raise unreadable("memory.process_gone")
        known = {process: process for process in self._members}
        # Those whose parent has ended are in the session only.
        below = dict.fromkeys((*descendants(self._root.pid), *session_members(self._root.pid)))
        self._members = (self._root, *(known.get(child, child) for child in below))
        self.observed_processes.update(self._members)
        self._refreshed = now
