"""Products of few rows with a weight in oneDNN's panels: CPU, float32.

    a panel [inputs, 64]          x [rows, inputs]       sums, in registers
    k=0  ████ ████ ████ ████      a0 a1 a2 a3 …          a  ████ ████ ████ ████  += a_k · panel_k
    k=1  ████ ████ ████ ████      b0 b1 b2 b3 …          b  ████ ████ ████ ████  += b_k · panel_k
     …   4 vectors of 16           up to six rows         …  24 of 32 registers

This is AVX-512. AVX2 has 16 registers of 8 numbers, and a pass computes a part of the panel's
outputs (:mod:`experiment.engine.cpu.panel_loop`).

A decode step reads every weight once. A single pass reads panels sequentially, and the hardware
prefetcher suffices. More rows need several passes, of which the first would wait for memory while
the others leave it idle. So each pass prefetches a share of the next weights:

    pass    rows     prefetched meanwhile                     a panel of many inputs is split
    1       a … f    ▒█░░ of the next weights                 into parts of some hundred, each
    2       g … l    ░░▒█                                     with all passes before the next

The bias is added per panel, while its outputs are in the cache. Threads take panels.

Sums are in the order of the inputs, so a row's result does not depend on the number of rows.
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
    INPUT_BYTES,
    MAX_TILE_ROWS,
    PART_VECTORS,
    UNROLL,
    WHOLE_VECTORS,
    WIDE,
    WIDTH,
    add_products,
)
from experiment.engine.cpu.torch_threads import (
    FAILED,
    Job,
    entry,
    make_job,
    next_piece,
    pointer,
    vector,
)
from experiment.engine.cpu.vectors import LANES, is_cross_compiling

# With more rows oneDNN is faster: see docs/performance.md.
MAX_ROWS = 48 if WIDE else 64

# Inputs of a part: 96 KiB, so that it and the next part fit the second-level cache. With AVX2 a
# third of that, so that the weights of one pass stay in the first-level cache.
_PART_INPUTS = 384 if WIDE else 128
_REQUIRED = {16: "avx512f", 8: "avx2"}


def usable() -> bool:
    """Whether the processor has the required features, and Numba compiles for it."""
    features = binding.get_host_cpu_features()
    return not is_cross_compiling() and all(
        features.get(name) for name in (_REQUIRED[LANES], "fma")
    )


def fits(panels: torch.Tensor) -> bool:
    """Whether the loop supports panels of this shape, [panels, inputs, width]."""
    return panels.shape[2] == WIDTH and panels.shape[1] % UNROLL == 0


@jit(None, set())
def _add_bias(to: int, bias: Floats, first: int, count: int) -> None:
    """Add the bias, from ``first`` on, to a row of a panel's sums."""
    row = numba.carray(pointer(to), (WIDTH,), F32)
    for o in range(count):
        row[o] += bias[first + o]


@jit(None, set())
def _clear(to: int) -> None:
    """Set a row of a panel's sums to 0."""
    row = numba.carray(pointer(to), (WIDTH,), F32)
    for o in range(WIDTH):
        row[o] = 0.0


@jit(None, set())
def _all_rows(
    x: int,
    rows: int,
    length: int,
    inputs: int,
    weights: int,
    ahead: int,
    sums: int,
    sum_stride: int,
) -> None:
    """Add the products with a part of a panel, and prefetch the part at the address ``ahead``."""
    groups = -(-rows // MAX_TILE_ROWS)
    most, vectors = WIDTH // LANES, WHOLE_VECTORS[rows] if groups == 1 else PART_VECTORS
    tiles = -(-most // vectors)
    passes = tiles * groups
    for tile in range(tiles):
        outputs, row = tile * vectors * LANES, 0
        wide = min(vectors, most - tile * vectors)
        for group in range(groups):
            # As even as possible: seven are four and three.
            batch = -(-(rows - row) // (groups - group))
            # Each input of each pass prefetches an equal share: bursts would stall. A single pass
            # prefetches nothing.
            place, stride = weights, 0
            if passes > 1 and ahead:
                place = ahead + (tile * groups + group) * inputs * INPUT_BYTES // passes
                stride = -(-INPUT_BYTES // passes)
            to, at = sums + 4 * (row * sum_stride + outputs), weights + 4 * outputs
            add_products(
                batch, wide, x + 4 * row * length, length, inputs, at, to, sum_stride, place, stride
            )
            row += batch


@jit(None, set())
def _panel_product(job: Job, panel: int, following: int, sums: Floats) -> None:
    """Compute one panel for all rows.

    ``following`` is the thread's next panel, or -1; ``sums`` is a buffer [MAX_ROWS * 64].
    """
    panels, outputs = job[3], job[4]
    x, rows, inputs = job[5], job[6], job[7]
    out, bias = vector(job, 8, F32), vector(job, 10, F32)
    panel_bytes, first = 4 * WIDTH * inputs, panel * WIDTH
    count = min(WIDTH, outputs - first)
    to, sum_stride = job[8] + 4 * first, outputs
    if count < WIDTH:
        to, sum_stride = np.int64(sums.ctypes.data), WIDTH
    for row in range(rows):
        _clear(to + 4 * row * sum_stride)
    for k in range(0, inputs, _PART_INPUTS):
        part, weights = min(_PART_INPUTS, inputs - k), panels + panel_bytes * panel + 4 * WIDTH * k
        ahead = weights + 4 * WIDTH * part
        if k + part == inputs:
            ahead = panels + panel_bytes * following if following >= 0 else 0
        _all_rows(x + 4 * k, rows, inputs, part, weights, ahead, to, sum_stride)
    for row in range(rows):
        if bias.shape[0]:
            _add_bias(to + 4 * row * sum_stride, bias, first, count)
        if count < WIDTH:
            for o in range(count):
                out[row * outputs + first + o] = sums[row * WIDTH + o]


@job_body
def _body(address: Any) -> None:
    """Compute this thread's panels of a :class:`PanelProduct`."""
    job = numba.carray(address, (torch_threads.MAX_ENTRIES,))
    try:
        sums = np.empty(MAX_ROWS * WIDTH, F32)
        panel, end = next_piece(job)
        while panel >= 0:
            following = panel + 1
            if following == end:
                following, end = next_piece(job)
            _panel_product(job, panel, following, sums)
            panel = following
    except Exception:
        job[2] = FAILED  # a C function cannot raise


class PanelProduct:
    """``x @ weight.T + bias`` for up to :data:`MAX_ROWS` rows.

    Args:
        packed: the weight, owner of the memory.
        panels: the same memory, [panels, inputs, 64].
        bias: [outputs], or None.
        outputs: of the weight; the last panel is padded.
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
        """Whether to use this product for ``rows`` rows."""
        return 0 < rows <= MAX_ROWS

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply [rows, inputs]; return [rows, outputs].

        Raises:
            ValueError: x is not contiguous or not float32.
        """
        if x.dtype != torch.float32:
            raise ValueError(f"few rows are multiplied in float32, not in {x.dtype}")
        out = x.new_empty(x.shape[0], self._outputs)
        threads, most = threads_for(x.shape[0] * self._weights, self._count)
        pieces = even_pieces(self._count, threads, most)
        arrays = (entry(x), (out.data_ptr(), out.numel()), entry(self._bias))
        run_job(_body, make_job(pieces, self._count, self._numbers, arrays), threads)
        return out
