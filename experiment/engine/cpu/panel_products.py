"""Products of few rows with the panels that oneDNN packs a weight into: CPU, float32.

    a panel [inputs, 64]          x [rows, inputs]       sums, in registers
    k=0  ████ ████ ████ ████      a0 a1 a2 a3 …          a  ████ ████ ████ ████  += a_k · panel_k
    k=1  ████ ████ ████ ████      b0 b1 b2 b3 …          b  ████ ████ ████ ████  += b_k · panel_k
     …   4 vectors of 16           up to six rows         …  24 of 32 registers

So it is with AVX-512. AVX2 has 16 registers of 8 numbers, and a pass takes a part of the panel's
outputs (:mod:`experiment.engine.cpu.panel_loop`).

A decode step reads every weight once. In a single pass a panel is read front to back and the
next one begins where it ends: the processor fetches ahead as for a plain sum. More rows, or parts,
go over it in several passes, of which the first would wait for memory and the others leave it idle:

    pass    rows     meanwhile on the way to the cache        a panel of many inputs is taken
    1       a … f    ▒█░░ of the weights that come next       in parts of some hundred, each
    2       g … l    ░░▒█                                     through all passes before the next

The bias is added while 64 outputs of the rows are at hand. Threads take panels.

The order of the sums is that of the inputs, whatever the number of rows up to MOST_ROWS: a row's
numbers do not depend on those beside it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from llvmlite import binding

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.compiled import (
    F32,
    Floats,
    even_pieces,
    jit,
    job_body,
    run_job,
    threads_for,
)
from experiment.engine.cpu.panel_loop import (
    ALONE,
    BESIDE,
    INPUT,
    MOST_IN_TILE,
    TURN,
    WIDE,
    WIDTH,
    add_products,
)
from experiment.engine.cpu.torch_threads import (
    BROKEN,
    Job,
    entry,
    make_job,
    next_piece,
    pointer,
    vector,
)
from experiment.engine.cpu.vectors import LANES, other_processor

# With more rows oneDNN, which also keeps rows of x at hand, is faster: see docs/performance.md.
MOST_ROWS = 48 if WIDE else 64

# Whose weights all rows go over before the next: 96 KiB, so that they and what is on its way are in
# the second-level cache. With AVX2 a third of it, whose part for one pass stays in the first.
_INPUTS = 384 if WIDE else 128
_NEEDED = {16: "avx512f", 8: "avx2"}


def usable() -> bool:
    """Whether this processor has the registers for it, and Numba was not told of another one."""
    found = binding.get_host_cpu_features()
    return not other_processor() and all(found.get(name) for name in (_NEEDED[LANES], "fma"))


def fits(panels: torch.Tensor) -> bool:
    """Whether panels [panels, inputs, width] are as wide and as long as the loop takes them."""
    return panels.shape[2] == WIDTH and panels.shape[1] % TURN == 0


@jit(None, set())
def _add_bias(to: int, bias: Floats, first: int, count: int) -> None:
    """The bias, from ``first`` on, to a row of a panel's sums."""
    row = numba.carray(pointer(to), (WIDTH,), F32)
    for o in range(count):
        row[o] += bias[first + o]


@jit(None, set())
def _clear(to: int) -> None:
    """A row of a panel's sums."""
    row = numba.carray(pointer(to), (WIDTH,), F32)
    for o in range(WIDTH):
        row[o] = 0.0


@jit(None, set())
def _all_rows(
    x: int, rows: int, length: int, inputs: int, weights: int, ahead: int, sums: int, apart: int
) -> None:
    """Add the products with a part of a panel, and send for the part that stands ``ahead``."""
    groups = -(-rows // MOST_IN_TILE)
    most, vectors = WIDTH // LANES, ALONE[rows] if groups == 1 else BESIDE
    tiles = -(-most // vectors)
    passes = tiles * groups
    for tile in range(tiles):
        outputs, row = tile * vectors * LANES, 0
        wide = min(vectors, most - tile * vectors)
        for group in range(groups):
            # As evenly as can be: seven are four and three.
            some = -(-(rows - row) // (groups - group))
            # As much of what stands ahead with each input of each pass: in bursts it would be
            # waited for. A single pass is read as memory gives it, and what is here need not be
            # sent for.
            place, stride = weights, 0
            if passes > 1 and ahead:
                place = ahead + (tile * groups + group) * inputs * INPUT // passes
                stride = -(-INPUT // passes)
            to, at = sums + 4 * (row * apart + outputs), weights + 4 * outputs
            add_products(
                some, wide, x + 4 * row * length, length, inputs, at, to, apart, place, stride
            )
            row += some


@jit(None, set())
def _one_panel(job: Job, panel: int, following: int, sums: Floats) -> None:
    """Of all rows; ``following`` is the thread's next panel, or -1. ``sums`` [most rows * 64]."""
    panels, outputs = job[3], job[4]
    x, rows, inputs = job[5], job[6], job[7]
    out, bias = vector(job, 8, F32), vector(job, 10, F32)
    panel_bytes, first = 4 * WIDTH * inputs, panel * WIDTH
    count = min(WIDTH, outputs - first)
    to, apart = job[8] + 4 * first, outputs
    if count < WIDTH:
        to, apart = np.int64(sums.ctypes.data), WIDTH
    for row in range(rows):
        _clear(to + 4 * row * apart)
    for k in range(0, inputs, _INPUTS):
        part, weights = min(_INPUTS, inputs - k), panels + panel_bytes * panel + 4 * WIDTH * k
        ahead = weights + 4 * WIDTH * part
        if k + part == inputs:
            ahead = panels + panel_bytes * following if following >= 0 else 0
        _all_rows(x + 4 * k, rows, inputs, part, weights, ahead, to, apart)
    for row in range(rows):
        if bias.shape[0]:
            _add_bias(to + 4 * row * apart, bias, first, count)
        if count < WIDTH:
            for o in range(count):
                out[row * outputs + first + o] = sums[row * WIDTH + o]


@job_body
def _body(address: Any) -> None:
    """:class:`PanelProduct` for the panels that this thread gets."""
    job = numba.carray(address, (torch_threads.LONGEST,))
    try:
        sums = np.empty(MOST_ROWS * WIDTH, F32)
        panel, end = next_piece(job)
        while panel >= 0:
            following = panel + 1
            if following == end:
                following, end = next_piece(job)
            _one_panel(job, panel, following, sums)
            panel = following
    except Exception:
        job[2] = BROKEN  # nobody sees what leaves a C function


class PanelProduct:
    """``x @ weight.T + bias`` for up to :data:`MOST_ROWS` rows.

    Args:
        packed: the weight, which holds the memory.
        panels: the same memory, [panels, inputs, 64].
        bias: [outputs], or none.
        outputs: of the weight; the last panel is filled up behind them.
    """

    def __init__(
        self, packed: torch.Tensor, panels: torch.Tensor, bias: torch.Tensor | None, outputs: int
    ) -> None:
        self._held = packed
        self._bias = panels.new_empty(0) if bias is None else bias
        self._weights, self._count = panels.numel(), panels.shape[0]
        self._numbers = panels.data_ptr(), outputs
        self._outputs = outputs

    def takes(self, rows: int) -> bool:
        """Whether it is the way to multiply so many rows."""
        return 0 < rows <= MOST_ROWS

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] to [rows, outputs].

        Raises:
            ValueError: x is not contiguous, or not of float32.
        """
        if x.dtype != torch.float32:
            raise ValueError(f"few rows are multiplied in float32, not in {x.dtype}")
        out = x.new_empty(x.shape[0], self._outputs)
        threads, most = threads_for(x.shape[0] * self._weights, self._count)
        pieces = even_pieces(self._count, threads, most)
        arrays = (entry(x), (out.data_ptr(), out.numel()), entry(self._bias))
        run_job(_body, make_job(pieces, self._count, self._numbers, arrays), threads)
        return out
