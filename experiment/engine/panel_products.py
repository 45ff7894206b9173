"""Products of few rows with the panels that oneDNN packs a weight into: CPU, AVX-512, float32.

    a panel [inputs, 64]          x [rows, inputs]       sums, in registers
    k=0  ████ ████ ████ ████      a0 a1 a2 a3 …          a  ████ ████ ████ ████  += a_k · panel_k
    k=1  ████ ████ ████ ████      b0 b1 b2 b3 …          b  ████ ████ ████ ████  += b_k · panel_k
     …   4 vectors of 16           up to six rows         …  24 of 32 registers

A decode step reads every weight once. A panel is read front to back, the next one begins where it
ends, nothing is written before its end is reached: the processor fetches ahead as for a plain sum.
Bias and activation are applied while a row of 64 outputs is at hand. Threads take panels.

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
from experiment.engine.cpu_kernel import (
    _F,
    _LOG2_E,
    TWO_TO_A_FRACTION,
    Floats,
    _compile,
    job_body,
    run_job,
    threads_for,
)
from experiment.engine.torch_threads import BROKEN, entry, make_job, next_piece, pointer, vector

WIDTH = 64
# With more rows oneDNN, which also keeps rows of x at hand, is faster: see docs/performance.md.
MOST_ROWS = 48
# oneDNN's names of an activation, and what the compiled code calls it.
ACTIVATIONS = {("none", ""): 0, ("gelu", "tanh"): 1, ("swish", ""): 2, ("relu", ""): 3}

_LANES = 16
_ROWS = 6  # whose sums are in registers together
_FLOAT, _WORD = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_GELU, _CUBED = 2 * (2 / np.pi) ** 0.5, 0.044715


def usable() -> bool:
    """Whether this processor has the registers for it, and Numba was not told of another one."""
    told = numba.config.CPU_NAME or numba.config.CPU_FEATURES
    return not told and bool(binding.get_host_cpu_features().get("avx512f"))


class _Loop:
    """Instructions of the loop over inputs, for so many rows."""

    def __init__(self, builder: Any, rows: int) -> None:
        self.builder, self.rows = builder, rows
        self.vectors = range(WIDTH // _LANES)
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{_LANES}f32"
        )

    def emit(self, x: Any, inputs: Any, panel: Any, sums: Any, apart: Any) -> None:
        """At least one input. ``apart`` is from one row of the sums to the next, in numbers."""
        builder, before = self.builder, self.builder.block
        loop, done = (builder.append_basic_block(name) for name in ("inputs", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_WORD)
        old = [[builder.phi(_VECTOR) for _ in self.vectors] for _ in range(self.rows)]
        new = self._step(old, self._at(x, k, 4), builder.mul(inputs, _word(4)),
                         self._at(panel, k, 4 * WIDTH))  # fmt: skip
        following = builder.add(k, _word(1))
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, done)
        for phi, first, again in [(k, _word(0), following), *_pairs(old, _lanes(0.0), new)]:
            phi.add_incoming(first, before)
            phi.add_incoming(again, loop)
        builder.position_at_end(done)
        for r, row in enumerate(new):
            begun = self._at(sums, builder.mul(apart, _word(r)), 4)
            for v, total in zip(self.vectors, row, strict=True):
                to = builder.add(begun, _word(4 * _LANES * v))
                builder.store(total, builder.inttoptr(to, _VECTOR.as_pointer()), align=4)

    def _step(self, sums: Any, x: Any, row_bytes: Any, weights: Any) -> list[list[Any]]:
        """The sums after one input: each row's number times the panel's 64 weights."""
        panel = [self._load(self._at(weights, _word(v), 4 * _LANES), _VECTOR) for v in self.vectors]
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
        nothing, lane = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)
        one = self.builder.insert_element(nothing, number, ir.Constant(lane, 0))
        mask = ir.Constant(ir.VectorType(lane, _LANES), [0] * _LANES)
        return self.builder.shuffle_vector(one, nothing, mask)


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _pairs(old: Any, zero: Any, new: Any) -> list[tuple[Any, Any, Any]]:
    rows = zip(old, new, strict=True)
    return [(phi, zero, value) for row in rows for phi, value in zip(*row, strict=True)]


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _products(
    _context: Any, x: Any, inputs: Any, panel: Any, sums: Any, apart: Any, rows: Any
) -> Any:
    """:meth:`_Loop.emit` for a number of rows that is known when this is compiled."""
    if not isinstance(rows, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        _Loop(builder, rows.literal_value).emit(*given[:5])
        return context.get_dummy_value()

    return types.void(x, inputs, panel, sums, apart, rows), code


@_compile(None, set())
def _sums(x: int, rows: int, inputs: int, panel: int, sums: int, apart: int) -> None:
    if rows == 6:
        _products(x, inputs, panel, sums, apart, 6)
    elif rows == 5:
        _products(x, inputs, panel, sums, apart, 5)
    elif rows == 4:
        _products(x, inputs, panel, sums, apart, 4)
    elif rows == 3:
        _products(x, inputs, panel, sums, apart, 3)
    elif rows == 2:
        _products(x, inputs, panel, sums, apart, 2)
    else:
        _products(x, inputs, panel, sums, apart, 1)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _activate(_context: Any, _address: Any, kind: Any) -> Any:
    """An activation of the 16 numbers at an address, in place."""
    if not isinstance(kind, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        at = builder.inttoptr(given[0], _VECTOR.as_pointer())
        y = builder.load(at)
        y.align = 4
        builder.store(_activated(builder, y, kind.literal_value), at, align=4)
        return context.get_dummy_value()

    return types.void(_address, kind), code


def _activated(builder: Any, y: Any, kind: int) -> Any:
    """Instructions for an activation of a vector; NaN stays NaN."""
    if kind == ACTIVATIONS["relu", ""]:
        return builder.select(builder.fcmp_ordered("<", y, _lanes(0.0)), _lanes(0.0), y)
    up = y
    if kind == ACTIVATIONS["gelu", "tanh"]:
        cube = builder.fmul(builder.fmul(y, y), y)
        up = builder.fmul(_lanes(_GELU), builder.fadd(y, builder.fmul(_lanes(_CUBED), cube)))
    return builder.fdiv(y, builder.fadd(_lanes(1.0), _exponential_of_minus(builder, up)))


def _exponential_of_minus(builder: Any, x: Any) -> Any:
    """exp(-x) by the polynomial of :func:`cpu_kernel._exponentials`; between 2^-126 and 2^126."""
    power = builder.fmul(x, _lanes(-float(_LOG2_E)))
    for sign, limit in ((">", 126.0), ("<", -126.0)):
        beyond = builder.fcmp_ordered(sign, power, _lanes(limit))
        power = builder.select(beyond, _lanes(limit), power)
    floor = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR]), f"llvm.floor.v{_LANES}f32"
    )
    whole = builder.call(floor, [builder.fadd(power, _lanes(0.5))])
    fraction = builder.fsub(power, whole)
    found = _lanes(TWO_TO_A_FRACTION[0])
    for factor in (*TWO_TO_A_FRACTION[1:], 1.0):
        found = builder.fadd(builder.fmul(found, fraction), _lanes(factor))
    number = builder.fcmp_ordered("ord", whole, whole)
    integers = ir.VectorType(ir.IntType(32), _LANES)
    exponent = builder.fptosi(builder.select(number, whole, _lanes(0.0)), integers)
    biased = builder.add(exponent, ir.Constant(integers, [127] * _LANES))
    bits = builder.shl(biased, ir.Constant(integers, [23] * _LANES))
    return builder.fmul(found, builder.bitcast(bits, _VECTOR))


def _lanes(value: float) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(_FLOAT, value)] * _LANES)


@_compile(None, set())
def _finish(to: int, bias: Floats, first: int, count: int, kind: int) -> None:
    """Bias, from ``first`` on, and activation of a row of a panel, in place."""
    row = numba.carray(pointer(to), (WIDTH,), _F)
    if bias.shape[0]:
        for o in range(count):
            row[o] += bias[first + o]
    if kind:
        for at in range(to, to + 4 * WIDTH, 4 * _LANES):
            if kind == 1:
                _activate(at, 1)
            elif kind == 2:
                _activate(at, 2)
            else:
                _activate(at, 3)


@job_body
def _body(address: Any) -> None:
    """:class:`PanelProduct` for the panels that this thread gets."""
    job = numba.carray(address, (torch_threads.LONGEST,))
    kind, panels, outputs = job[3], job[4], job[5]
    x, rows, inputs = job[6], job[7], job[8]
    out, bias = vector(job, 9, _F), vector(job, 11, _F)
    try:
        sums = np.empty(_ROWS * WIDTH, _F)
        scratch = np.int64(sums.ctypes.data)
        begin, end = next_piece(job)
        while begin >= 0:
            for first in range(begin * WIDTH, end * WIDTH, WIDTH):
                count = min(WIDTH, outputs - first)
                row = 0
                while row < rows:
                    # As evenly as can be: seven are four and three.
                    some = -(-(rows - row) // (-(-(rows - row) // _ROWS)))
                    rows_at, weights = x + 4 * row * inputs, panels + 4 * first * inputs
                    at = row * outputs + first
                    to, apart = job[9] + 4 * at, outputs
                    if count < WIDTH:
                        to, apart = scratch, WIDTH
                    _sums(rows_at, some, inputs, weights, to, apart)
                    for r in range(some):
                        _finish(to + 4 * r * apart, bias, first, count, kind)
                        if count < WIDTH:
                            for o in range(count):
                                out[at + r * outputs + o] = sums[r * WIDTH + o]
                    row += some
            begin, end = next_piece(job)
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

    def __call__(self, x: torch.Tensor, post: tuple[str, str]) -> torch.Tensor:
        """[rows, inputs] to [rows, outputs]; ``post`` is one of :data:`ACTIVATIONS`.

        Raises:
            ValueError: x is not contiguous, or not of float32.
        """
        if x.dtype != torch.float32:
            raise ValueError(f"few rows are multiplied in float32, not in {x.dtype}")
        out = x.new_empty(x.shape[0], self._outputs)
        threads, pieces = threads_for(x.shape[0] * self._weights, self._count)
        numbers = (ACTIVATIONS[post], *self._numbers)
        arrays = (entry(x), (out.data_ptr(), out.numel()), entry(self._bias))
        run_job(_body, make_job(pieces, self._count, numbers, arrays), threads)
        return out
