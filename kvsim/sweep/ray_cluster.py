"""Computes cells on a Ray cluster; Ray retries the cells of a failed node on other nodes.

    driver ── cell, trace ──► task on any node ── bytes ──► driver writes the file

Ray ships this package with the tasks, and trace files as bytes: nodes need Python, numpy and Ray,
but no shared disk. Ray is imported only here, on demand.
"""

from __future__ import annotations

import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import kvsim
from kvsim.sweep.cell import ComputedCell, compute
from kvsim.sweep.grid import SweepCell, SweepError

# Retries after node failures; exceptions are not retried.
_RETRIES = 20
_CONNECT_TIMEOUT_S = 10.0


def run_on_ray(cells: Sequence[SweepCell], address: str) -> Iterator[ComputedCell]:
    """Yield cells as they are computed, in any order.

    Args:
        address: as for ``ray.init``: ``host:port``, ``auto``, ``local``.

    Raises:
        SweepError: ``no_ray``: it is not installed; ``ray_unreachable``.
    """
    try:
        import ray
    except ImportError as error:
        raise SweepError("no_ray") from error
    with _sigterm_kept():
        _connect(ray, address)
    try:
        yield from _run(ray, cells)
    finally:
        with _sigterm_kept():
            ray.shutdown()


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the SIGTERM handler: Ray's own ends the process without writing results."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _connect(ray: Any, address: str) -> None:
    _check_reachable(address)
    package = str(Path(kvsim.__file__).parent)
    try:
        ray.init(
            address=address,
            runtime_env={"py_modules": [package]},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SweepError("ray_unreachable", address=address, why=why) from error


def _check_reachable(address: str) -> None:
    """Check that the address accepts connections; Ray itself would retry for minutes.

    Raises:
        SweepError: ``ray_unreachable``.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # a keyword of Ray, such as auto
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S):
            return
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SweepError("ray_unreachable", address=address, why=why) from error


def _run(ray: Any, cells: Sequence[SweepCell]) -> Iterator[ComputedCell]:
    task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_compute)
    traces: dict[str, Any] = {}
    for cell in cells:
        if cell.trace_sha256 is not None and cell.trace_sha256 not in traces:
            content = Path(cell.settings["trace"]).read_bytes()
            traces[cell.trace_sha256] = ray.put(content)
    left = [task.remote(cell, traces.get(cell.trace_sha256 or "")) for cell in cells]
    while left:
        ended, left = ray.wait(left, num_returns=1)
        yield from ray.get(ended)


def _compute(cell: SweepCell, trace: bytes | None) -> ComputedCell:
    import ray

    node = str(ray.get_runtime_context().get_node_id())
    return replace(_compute_here(cell, trace), by=node)


def _compute_here(cell: SweepCell, trace: bytes | None) -> ComputedCell:
    if trace is None:
        return compute(cell)
    with tempfile.TemporaryDirectory(prefix="pagedkv-") as scratch:
        # The file name is part of the result.
        path = Path(scratch) / Path(cell.settings["trace"]).name
        path.write_bytes(trace)
        return compute(cell, path)
