"""Memory of a process and of everything that it started.

    root ─┬─ child            RSS   resident pages; pages that several share count for each
          └─ child ── child   PSS   shared pages divided among those that share them (Linux)
                              USS   pages of nobody else

The list of processes is renewed every 250 ms, because walking the process table costs far more
than reading the memory of processes that are known already.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from experiment.memory.figure import Figure, missing

REFRESH_S = 0.25
_HIGH_WATER = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TreeDetails:
    """Figures too dear for every sample. ``high_water`` is the root's alone, never a sum.

    Peaks of several processes need not have been at the same time.
    """

    uss: Figure
    pss: Figure
    high_water: Figure


class ProcessTree:
    """Samples the tree below ``pid``. Once the root is gone every figure is None, never 0."""

    def __init__(self, pid: int, refresh_s: float = REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._renewed = float("-inf")
        self._members: tuple[Any, ...] = ()
        self._root: Any = None  # None: it has ended
        with contextlib.suppress(psutil.NoSuchProcess):
            self._root = psutil.Process(pid)

    def pids(self) -> frozenset[int]:
        """List the processes of the tree as last walked; none once the root is gone."""
        try:
            self._renew()
        except psutil.NoSuchProcess:
            return frozenset()
        return frozenset(process.pid for process in self._members)

    def rss(self, *, fresh: bool = False) -> Figure:
        """Resident bytes of all processes at this moment, added up.

        ``fresh`` walks the tree first; without it a process younger than 250 ms may be missing.
        """
        return self._sum(lambda process: process.memory_info().rss, fresh=fresh)

    def details(self) -> TreeDetails:
        """USS and PSS of the tree and the root's high-water mark. Takes milliseconds."""
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
            high_water=self._high_water(),
        )

    def _sum(self, read: Callable[[Any], int | None], *, fresh: bool) -> Figure:
        total = 0
        try:
            self._renew(fresh=fresh)
            for process in self._members:
                size = self._size(process, read)
                if size is None:
                    return missing("memory.not_this_os")
                total += size
        except psutil.NoSuchProcess:
            return missing("memory.process_gone")
        except psutil.AccessDenied:
            return missing("memory.process_denied")
        return Figure(total)

    def _size(self, process: Any, read: Callable[[Any], int | None]) -> int | None:
        """Bytes of one process; 0 for a child that has ended, because it holds none.

        Raises:
            psutil.NoSuchProcess: the root has ended.
        """
        try:
            size = read(process)
        except psutil.NoSuchProcess:
            size = 0
        # The kernel answers 0 for a process that has ended and was not waited for.
        if size == 0 and process == self._root:
            raise psutil.NoSuchProcess(process.pid)
        return size

    def _high_water(self) -> Figure:
        try:
            self._renew()
            if sys.platform == "win32":
                return Figure(self._root.memory_info().peak_wset)
            if sys.platform != "linux":
                return missing("memory.not_this_os")
            status = Path(f"/proc/{self._root.pid}/status").read_text(encoding="utf-8")
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            return missing("memory.process_gone")
        except (psutil.AccessDenied, PermissionError):
            return missing("memory.process_denied")
        found = _HIGH_WATER.search(status)
        # A process that has ended and was not waited for has a status without memory.
        return Figure(int(found[1]) * 1024) if found else missing("memory.process_gone")

    def _renew(self, *, fresh: bool = False) -> None:
        now = time.monotonic()
        if not fresh and now - self._renewed < self._refresh_s:
            return
        # is_running compares start times too: a pid that was given away again is not ours.
        if self._root is None or not self._root.is_running():
            self._root, self._members, self._renewed = None, (), float("-inf")
            raise psutil.NoSuchProcess(0)
        known = {process: process for process in self._members}
        children = self._root.children(recursive=True)
        self._members = (self._root, *(known.get(child, child) for child in children))
        self._renewed = now
