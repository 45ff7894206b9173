"""Cells by processes of this machine; a process that dies takes nothing with it but its cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from kvsim.sweep.cell import Done, compute
from kvsim.sweep.grid import Cell, SweepError

# Pools in a row that break before any of their cells has ended.
_MOST_BROKEN = 3


def by_processes(cells: Sequence[Cell], workers: int) -> Iterator[Done]:
    """Cells as they end, in no particular order.

    Raises:
        SweepError: ``workers_died``: processes keep dying (out of memory?).
    """
    left = {cell.id: cell for cell in cells}
    broken = 0
    while left:
        before = len(left)
        try:
            for done in _one_pool(list(left.values()), workers):
                del left[done.id]
                yield done
        except BrokenProcessPool as error:
            broken = 0 if len(left) < before else broken + 1
            if broken == _MOST_BROKEN:
                raise SweepError("workers_died", left=len(left)) from error


def _one_pool(cells: Sequence[Cell], workers: int) -> Iterator[Done]:
    # Not forked: threads of the parent hold locks that a copy would never see opened.
    pool = ProcessPoolExecutor(min(workers, len(cells)), mp_context=get_context("spawn"))
    try:
        futures: list[Future[Done]] = [pool.submit(compute, cell) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
