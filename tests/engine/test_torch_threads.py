"""Compiled loops on torch's own threads: every task once, and no thread beside torch's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.compiled import run_job
from experiment.engine.cpu.torch_threads import (
    FAILED,
    MAX_ENTRIES,
    entry,
    make_job,
    next_piece,
    parallel_region,
    vector,
)

TASKS = 1000

needs_pool = pytest.mark.skipif(
    parallel_region() is None, reason="torch's OpenMP library is not identified"
)


@numba.cfunc("void(CPointer(int64))")  # type: ignore[untyped-decorator]
def _count(address: Any) -> None:
    """Count each task of each piece."""
    job = numba.carray(address, (MAX_ENTRIES,))
    counts = vector(job, 3, np.int64)
    begin, end = next_piece(job)
    while begin >= 0:
        for task in range(begin, end):
            counts[task] += 1
        begin, end = next_piece(job)


@pytest.mark.parametrize("on_torch", [pytest.param(True, marks=needs_pool), False])
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("pieces", [1, 7, TASKS])
def test_every_task_is_done_once(
    pieces: int, threads: int, on_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not on_torch:
        monkeypatch.setattr(torch_threads, "parallel_region", lambda: None)
    for _ in range(20):
        counts = torch.zeros(TASKS, dtype=torch.int64)
        run_job(_count, make_job(pieces, TASKS, [], [entry(counts)]), threads)
        assert counts.eq(1).all()


@numba.cfunc("void(CPointer(int64))")  # type: ignore[untyped-decorator]
def _break_off(address: Any) -> None:
    """Raise in the third piece."""
    job = numba.carray(address, (MAX_ENTRIES,))
    try:
        begin, _ = next_piece(job)
        while begin >= 0:
            if begin == 2:
                raise ValueError("broken")
            begin, _ = next_piece(job)
    except Exception:
        job[2] = FAILED


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_that_breaks_off_is_not_taken_for_done(threads: int) -> None:
    with pytest.raises(RuntimeError, match="failed"):
        run_job(_break_off, make_job(5, 5, [], []), threads)


def test_an_array_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        entry(torch.zeros(4, 4)[:, :2])


_THREADS = """
import os
import torch
torch.set_num_threads(3)
torch.ones(512, 512) @ torch.ones(512, 512)
torch.ones(1 << 22).add_(1)
from experiment.engine.cpu import compiled, torch_threads
torch_threads.parallel_region()
compiled._threads = lambda: 3
before = set(os.listdir("/proc/self/task"))
from test_torch_threads import _count, TASKS
counts = torch.zeros(TASKS, dtype=torch.int64)
job = torch_threads.make_job(12, TASKS, [], [torch_threads.entry(counts)])
for team in (3, 2):
    compiled.run_job(_count, job, team)
    torch.ones(512, 512) @ torch.ones(512, 512)
print(sorted(set(os.listdir("/proc/self/task")) ^ before))
"""


@needs_pool
def test_no_thread_is_started_beside_those_of_torch_and_none_of_them_ends() -> None:
    here = Path(__file__).parent
    script = f"import sys; sys.path.insert(0, {str(here)!r})\n{_THREADS}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=here.parent.parent,
        encoding="utf-8",
    )
    assert done.stdout.strip() == "[]"
