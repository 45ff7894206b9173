"""Products of few rows with the panels that oneDNN packs a weight into: CPU, float32.

    a panel [inputs, 64]          x [rows, inputs]       sums, in registers
    k=0  ████ ████ ████ ████      a0 a1 a2 a3 …          a  ████ ████ ████ ████  += a_k · panel_k
    k=1  ████ ████ ████ ████      b0 b1 b2 b3 …          b  ████ ████ ████ ████  += b_k · panel_k
     …   4 vectors of 16           up to six rows         …  24 of 32 registers

So it is with AVX-512. With AVX2 there are 16 registers of 8 numbers, and a pass takes a part of the
panel's outputs: all 64 for one row, 32 for two or three, 16 for four to six.

A decode step reads every weight once. In a single pass a panel is read front to back and the
next one begins where it ends: the processor fetches ahead as for a plain sum. More rows, or parts,
go over it in several passes, of which the first would wait for memory and the others leave it idle:

    pass    rows     meanwhile on the way to the cache        a panel of many inputs is taken
    1       a … f    ▒█░░ of the weights that come next       in parts of 384, each through all
    2       g … l    ░░▒█                                     passes before the next

Bias and activation are applied while 64 outputs of the rows are at hand. Threads take panels.

Numba makes no use of vectors here by itself (it would keep the sums in memory), so the loop over
inputs is written in LLVM's own instructions. The order of the sums is that of the inputs, whatever
the number of rows up to MOST_ROWS: a row's numbers do not depend on those beside it.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from experiment.engine import torch_threads
from experiment.engine.compiled import F32, Floats, even_pieces, jit, job_body, run_job, threads_for
from experiment.engine.prefetch import LINE, prefetch
from experiment.engine.torch_threads import (
    BROKEN,
    Job,
    entry,
    make_job,
    next_piece,
    pointer,
    vector,
)
from experiment.engine.vector_activation import (
    ACTIVATIONS,
    LANES,
    SHORT,
    VECTOR,
    activate,
    activate_vectors,
)

WIDTH = 64
# With more rows oneDNN, which also keeps rows of x at hand, is faster: see docs/performance.md.
MOST_ROWS = 48

_ROWS = 6  # whose sums are in registers together
# Vectors of each that are: with AVX-512, and by the number of rows with AVX2.
_VECTORS = (0, *[4] * _ROWS) if LANES == 16 else (0, 8, 4, 4, 2, 2, 2)
# Whose weights all rows go over before the next: 96 KiB, so that they and what is on its way are in
# the second-level cache.
_INPUTS = 384
_NEEDED = {16: "avx512f", 8: "avx2"}
_INPUT = 4 * WIDTH  # bytes of a panel for each input
_FLOAT, _WORD = ir.FloatType(), ir.IntType(64)


def usable() -> bool:
    """Whether this processor has the registers for it, and Numba was not told of another one."""
    told = numba.config.CPU_NAME or numba.config.CPU_FEATURES
    found = binding.get_host_cpu_features()
    return not told and all(found.get(name) for name in (_NEEDED[LANES], "fma"))


class _Loop:
    """Instructions of the loop over inputs, for so many rows and vectors of outputs."""

    def __init__(self, builder: Any, rows: int, vectors: int) -> None:
        self.builder, self.rows = builder, rows
        self.vectors = range(vectors)
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

    def emit(
        self, x: Any, length: Any, inputs: Any, panel: Any, sums: Any, apart: Any, ahead: Any,
        stride: Any,
    ) -> None:  # fmt: skip
        """Add to the sums; at least one input.

        Rows of x are ``length`` numbers apart, those of the sums ``apart``. From the address
        ``ahead`` on two lines are sent for with each input, ``stride`` bytes behind the last two.
        """
        builder, before = self.builder, self.builder.block
        stored = self._vectors_of(sums, apart)
        begun = [[self._load(at, VECTOR) for at in row] for row in stored]
        loop, done = (builder.append_basic_block(name) for name in ("inputs", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_WORD)
        old = [[builder.phi(VECTOR) for _ in self.vectors] for _ in range(self.rows)]
        wanted = builder.add(ahead, builder.mul(k, stride))
        for line in range(2):
            prefetch(builder, self._at(wanted, _word(line), LINE))
        new = self._step(old, self._at(x, k, 4), builder.mul(length, _word(4)),
                         self._at(panel, k, 4 * WIDTH))  # fmt: skip
        following = builder.add(k, _word(1))
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, done)
        for phi, first, again in [(k, _word(0), following), *_triples(old, begun, new)]:
            phi.add_incoming(first, before)
            phi.add_incoming(again, loop)
        builder.position_at_end(done)
        for at, _, total in _triples(stored, begun, new):
            builder.store(total, builder.inttoptr(at, VECTOR.as_pointer()), align=4)

    def _vectors_of(self, sums: Any, apart: Any) -> list[list[Any]]:
        """Addresses of the sums of each row."""
        builder = self.builder
        rows = [self._at(sums, builder.mul(apart, _word(r)), 4) for r in range(self.rows)]
        return [[builder.add(at, _word(4 * LANES * v)) for v in self.vectors] for at in rows]

    def _step(self, sums: Any, x: Any, row_bytes: Any, weights: Any) -> list[list[Any]]:
        """The sums after one input: each row's number times weights of the panel."""
        panel = [self._load(self._at(weights, _word(v), 4 * LANES), VECTOR) for v in self.vectors]
        new = []
        for r in range(self.rows):
            at = self.builder.add(x, self.builder.mul(row_bytes, _word(r)))
            factor = self._all_lanes(self._load(at, _FLOAT))
            pairs = zip(panel, sums[r], strict=True)
            new.append([self.builder.call(self.fma, [factor, w, s]) for w, s in pairs])
        return new

    def _at(self, address: Any, index: Any, size: int) -> Any:
        return self.builder.add(address, self.builder.mul(index, _word(size)))

    def _load(self, address: Any, kind: Any) -> Any:
        loaded = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        loaded.align = 4
        return loaded

    def _all_lanes(self, number: Any) -> Any:
        nothing = ir.Constant(VECTOR, ir.Undefined)
        one = self.builder.insert_element(nothing, number, ir.Constant(SHORT, 0))
        mask = ir.Constant(ir.VectorType(SHORT, LANES), [0] * LANES)
        return self.builder.shuffle_vector(one, nothing, mask)


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _triples(*of_rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [some for rows in zip(*of_rows, strict=True) for some in zip(*rows, strict=True)]


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _products(
    _context: Any, x: Any, length: Any, inputs: Any, panel: Any, sums: Any, apart: Any, ahead: Any,
    stride: Any, rows: Any, vectors: Any
) -> Any:  # fmt: skip
    """:meth:`_Loop.emit` for rows and vectors whose number is known when this is compiled."""
    tile = rows, vectors
    if not all(isinstance(side, types.IntegerLiteral) for side in tile):
        return None
    given = (x, length, inputs, panel, sums, apart, ahead, stride)

    def code(context: Any, builder: Any, _: Any, values: Any) -> Any:
        _Loop(builder, *(side.literal_value for side in tile)).emit(*values[: len(given)])
        return context.get_dummy_value()

    return types.void(*given, *tile), code


@jit(None, set())
def _with_avx512(
    x: int, rows: int, vectors: int, length: int, inputs: int, panel: int, sums: int,  # noqa: ARG001
    apart: int, ahead: int, stride: int
) -> None:  # fmt: skip
    if rows == 6:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 6, 4)
    elif rows == 5:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 5, 4)
    elif rows == 4:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 4, 4)
    elif rows == 3:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 3, 4)
    elif rows == 2:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 2, 4)
    else:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 1, 4)


@jit(None, set())
def _with_avx2(
    x: int, rows: int, vectors: int, length: int, inputs: int, panel: int, sums: int, apart: int,
    ahead: int, stride: int
) -> None:  # fmt: skip
    if rows == 6:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 6, 2)
    elif rows == 5:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 5, 2)
    elif rows == 4:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 4, 2)
    elif rows == 3 and vectors == 2:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 3, 2)
    elif rows == 3:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 3, 4)
    elif rows == 2:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 2, 4)
    else:
        _products(x, length, inputs, panel, sums, apart, ahead, stride, 1, 8)


_sums = _with_avx512 if LANES == 16 else _with_avx2


@jit(None, set())
def _finish(to: int, bias: Floats, first: int, count: int, kind: int) -> None:
    """Bias, from ``first`` on, and activation of a row of a panel, in place."""
    row = numba.carray(pointer(to), (WIDTH,), F32)
    if bias.shape[0]:
        for o in range(count):
            row[o] += bias[first + o]
    if kind:
        activate_vectors(to, to + 4 * WIDTH, kind)


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
    groups = -(-rows // _ROWS)
    vectors = _VECTORS[-(-rows // groups)]
    tiles = WIDTH // LANES // vectors
    passes = tiles * groups
    for tile in range(tiles):
        outputs, row = tile * vectors * LANES, 0
        for group in range(groups):
            # As evenly as can be: seven are four and three.
            some = -(-(rows - row) // (groups - group))
            # As much of what stands ahead with each input of each pass: in bursts it would be
            # waited for. A single pass is read as memory gives it, and what is here need not be
            # sent for.
            place, stride = weights, 0
            if passes > 1 and ahead:
                place = ahead + (tile * groups + group) * inputs * _INPUT // passes
                stride = -(-_INPUT // passes)
            to = sums + 4 * (row * apart + outputs)
            at = weights + 4 * outputs
            _sums(x + 4 * row * length, some, vectors, length, inputs, at, to, apart, place, stride)
            row += some


@jit(None, set())
def _one_panel(job: Job, panel: int, following: int, sums: Floats) -> None:
    """Of all rows; ``following`` is the thread's next panel, or -1. ``sums`` [most rows * 64]."""
    kind, panels, outputs = job[3], job[4], job[5]
    x, rows, inputs = job[6], job[7], job[8]
    out, bias = vector(job, 9, F32), vector(job, 11, F32)
    panel_bytes, first = 4 * WIDTH * inputs, panel * WIDTH
    count = min(WIDTH, outputs - first)
    to, apart = job[9] + 4 * first, outputs
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
        _finish(to + 4 * row * apart, bias, first, count, kind)
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
    """``activation(x @ weight.T + bias)`` for up to :data:`MOST_ROWS` rows.

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

    def takes(self, rows: int, post: tuple[str, str]) -> bool:
        """Whether it is the way to multiply so many rows and to apply that activation."""
        return 0 < rows <= MOST_ROWS and post in ACTIVATIONS

    def activates(self, post: tuple[str, str]) -> bool:
        """Whether :meth:`activate` is faster than oneDNN behind its own products.

        With AVX2 oneDNN takes 41 ms for 2,048 rows of 3,072 numbers, and this 3.
        """
        return LANES == 8 and ACTIVATIONS.get(post, 0) > 0

    def activate(self, y: torch.Tensor, post: tuple[str, str]) -> None:
        """:func:`~experiment.engine.vector_activation.activate`."""
        activate(y, post)

    def __call__(self, x: torch.Tensor, post: tuple[str, str]) -> torch.Tensor:
        """[rows, inputs] to [rows, outputs]; ``post`` is one of :data:`ACTIVATIONS`.

        Raises:
            ValueError: x is not contiguous, or not of float32.
        """
        if x.dtype != torch.float32:
            raise ValueError(f"few rows are multiplied in float32, not in {x.dtype}")
        out = x.new_empty(x.shape[0], self._outputs)
        threads, most = threads_for(x.shape[0] * self._weights, self._count)
        pieces = even_pieces(self._count, threads, most)
        numbers = (ACTIVATIONS[post], *self._numbers)
        arrays = (entry(x), (out.data_ptr(), out.numel()), entry(self._bias))
        run_job(_body, make_job(pieces, self._count, numbers, arrays), threads)
        return out
