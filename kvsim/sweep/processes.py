"""Cells by processes of this machine; a process that dies takes nothing with it but its cell."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process, resource_tracker

from kvsim.sweep.cell import Done, compute
from kvsim.sweep.grid import Cell, SweepError

# What ends a command; where a system cannot hold signals back, none.
_HELD = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, "pthread_sigmask") and hasattr(signal, name)
}
# Pools in a row that break before any of their cells has ended.
_MOST_BROKEN = 3
_SAFE_PATH = "PYTHONSAFEPATH"


def by_processes(cells: Sequence[Cell], workers: int) -> Iterator[Done]:
    """Cells as they end, in no particular order.

    Raises:
        SweepError: ``workers_died``: processes keep dying (out of memory?); ``no_processes``: the
            system makes none.
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
    others, whole = set(active_children()), False
    with _made_by_the_system(), _safe_path():
        pool = _pool(min(workers, len(cells)))
    try:
        with _made_by_the_system(), _signals_held(), _safe_path():
            futures: list[Future[Done]] = [pool.submit(compute, cell) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
        whole = True
    finally:
        if not whole:  # a cell may take minutes, and nobody is left who wants it
            for process in set(active_children()) - others:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _pool(workers: int) -> ProcessPoolExecutor:
    # It gives back what a killed process leaves, so it must not go with the terminal of that one.
    # Windows has none, and no signals to hold back.
    if _HELD:
        with _signals_held():
            resource_tracker.ensure_running()
    # Not forked: threads of the parent hold locks that a copy would never see opened.
    return ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=_stay_with_parent
    )


@contextmanager
def _safe_path() -> Iterator[None]:
    """Processes that start here import nothing from the working directory."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _made_by_the_system() -> Iterator[None]:
    """Processes, pipes and what they share: without room or a number left there are none."""
    try:
        yield
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, type(error).__name__)
        raise SweepError("no_processes", why=why) from error


def _stay_with_parent() -> None:
    """Ctrl-C is the parent's to answer; and where it was killed, nobody waits for its next cell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _HELD:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _signals_held() -> Iterator[None]:
    """No process is half started when a signal comes, and none hears of one while it imports."""
    if not _HELD:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
