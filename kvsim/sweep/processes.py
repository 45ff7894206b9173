"""Computes cells in local processes; a process that dies loses only its own cell."""

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

from kvsim.sweep.cell import ComputedCell, compute
from kvsim.sweep.grid import SweepCell, SweepError

# Signals that end a command; empty where signals cannot be blocked.
_SIGNALS = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, "pthread_sigmask") and hasattr(signal, name)
}
# Consecutive broken pools without a finished cell before giving up.
_MAX_BROKEN = 3
_SAFE_PATH = "PYTHONSAFEPATH"


def run_in_processes(cells: Sequence[SweepCell], workers: int) -> Iterator[ComputedCell]:
    """Yield cells as they are computed, in any order.

    Raises:
        SweepError: ``workers_died``: processes keep dying (out of memory?); ``no_processes``: the
            system cannot create processes.
    """
    left = {cell.id: cell for cell in cells}
    broken = 0
    while left:
        before = len(left)
        try:
            for done in _run_pool(list(left.values()), workers):
                del left[done.id]
                yield done
        except BrokenProcessPool as error:
            broken = 0 if len(left) < before else broken + 1
            if broken == _MAX_BROKEN:
                raise SweepError("workers_died", left=len(left)) from error


def _run_pool(cells: Sequence[SweepCell], workers: int) -> Iterator[ComputedCell]:
    others, complete = set(active_children()), False
    with _starting():
        if _SIGNALS:
            # It cleans up after killed processes, and must survive the terminal's signals.
            resource_tracker.ensure_running()
        # Do not fork: locks held by other threads would never be released in the child.
        pool = ProcessPoolExecutor(
            min(workers, len(cells)),
            mp_context=get_context("spawn"),
            initializer=_exit_with_parent,
        )
    try:
        with _starting():
            futures: list[Future[ComputedCell]] = [pool.submit(compute, cell) for cell in cells]
        for future in as_completed(futures):
            yield future.result()
        complete = True
    finally:
        if not complete:  # abandoned by the caller: do not wait minutes for running cells
            for process in set(active_children()) - others:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _starting() -> Iterator[None]:
    """Block signals while processes start, and keep them from importing the working directory.

    Raises:
        SweepError: ``no_processes``: the system cannot create processes or pipes.
    """
    safe_path = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS) if _SIGNALS else None
    try:
        yield
    except OSError as error:
        why = errno.errorcode.get(error.errno or 0, type(error).__name__)
        raise SweepError("no_processes", why=why) from error
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if safe_path is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = safe_path


def _exit_with_parent() -> None:
    """Ignore SIGINT, which the parent handles, and exit when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _SIGNALS:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
