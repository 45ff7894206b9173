"""Activations in vectors of the processor's own width, in place: CPU, AVX-512 or AVX2, float32.

    y [rows, outputs], one number behind the other     ████ ████ ████ … ██     a vector at a time
    threads take pieces of 4,096 numbers                               └──── the last one filled up

x / (1 + exp(-u)) is SiLU with u = x, and with the cubic u of the tanh form what GPT-2 calls GELU.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.attention_kernel import LOG2_E, TWO_TO_A_FRACTION
from experiment.engine.cpu.compiled import F32, jit, job_body, run_job, threads_for
from experiment.engine.cpu.torch_threads import BROKEN, Job, make_job, next_piece, pointer
from experiment.engine.cpu.vectors import LANES, SHORT, VECTOR

# oneDNN's names of an activation, and what the compiled code calls it.
ACTIVATIONS = {("none", ""): 0, ("gelu", "tanh"): 1, ("swish", ""): 2, ("relu", ""): 3}
_FLOAT = ir.FloatType()
_GELU, _CUBED = 2 * (2 / np.pi) ** 0.5, 0.044715
_PIECE = 4096  # numbers


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _activate(_context: Any, _address: Any, kind: Any) -> Any:
    """An activation of the numbers of a vector at an address, in place."""
    if not isinstance(kind, types.IntegerLiteral):
        return None

    def code(context: Any, builder: Any, _: Any, given: Any) -> Any:
        at = builder.inttoptr(given[0], VECTOR.as_pointer())
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
    power = builder.fmul(x, _lanes(-float(LOG2_E)))
    for sign, limit in ((">", 126.0), ("<", -126.0)):
        beyond = builder.fcmp_ordered(sign, power, _lanes(limit))
        power = builder.select(beyond, _lanes(limit), power)
    floor = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(VECTOR, [VECTOR]), f"llvm.floor.v{LANES}f32"
    )
    whole = builder.call(floor, [builder.fadd(power, _lanes(0.5))])
    fraction = builder.fsub(power, whole)
    found = _lanes(TWO_TO_A_FRACTION[0])
    for factor in (*TWO_TO_A_FRACTION[1:], 1.0):
        found = builder.fadd(builder.fmul(found, fraction), _lanes(factor))
    number = builder.fcmp_ordered("ord", whole, whole)
    integers = ir.VectorType(SHORT, LANES)
    exponent = builder.fptosi(builder.select(number, whole, _lanes(0.0)), integers)
    biased = builder.add(exponent, ir.Constant(integers, [127] * LANES))
    bits = builder.shl(biased, ir.Constant(integers, [23] * LANES))
    return builder.fmul(found, builder.bitcast(bits, VECTOR))


def _lanes(value: float) -> Any:
    return ir.Constant(VECTOR, [ir.Constant(_FLOAT, value)] * LANES)


@jit(None, set())
def activate_vectors(begin: int, end: int, kind: int) -> None:
    """Those between two addresses, whole vectors; ``kind`` is one of :data:`ACTIVATIONS`."""
    for at in range(begin, end, 4 * LANES):
        if kind == 1:
            _activate(at, 1)
        elif kind == 2:
            _activate(at, 2)
        elif kind == 3:
            _activate(at, 3)


@jit(None, set())
def _one_piece(job: Job, piece: int, filled: Any) -> None:
    """``filled`` [LANES] takes what is left behind the last whole vector."""
    kind, numbers = job[3], job[5]
    first = piece * _PIECE
    count = min(_PIECE, numbers - first)
    begin, left = job[4] + 4 * first, count % LANES
    end = begin + 4 * (count - left)
    activate_vectors(begin, end, kind)
    if left:
        at: Any = np.int64(filled.ctypes.data)
        rest = numba.carray(pointer(end), (left,), F32)
        filled[:left] = rest
        activate_vectors(at, at + 4 * LANES, kind)
        rest[:] = filled[:left]


@job_body
def _body(address: Any) -> None:
    job = numba.carray(address, (torch_threads.LONGEST,))
    try:
        filled = np.zeros(LANES, F32)
        piece, end = next_piece(job)
        while piece >= 0:
            for each in range(piece, end):
                _one_piece(job, each, filled)
            piece, end = next_piece(job)
    except Exception:
        job[2] = BROKEN  # nobody sees what leaves a C function


def activate(y: torch.Tensor, post: tuple[str, str]) -> None:
    """Apply one of :data:`ACTIVATIONS` to a contiguous tensor of float32, in place.

    Raises:
        ValueError: y is not contiguous, or not of float32.
    """
    if y.dtype != torch.float32 or not y.is_contiguous():
        raise ValueError(f"activations are of contiguous float32, not of {y.dtype}")
    pieces = -(-y.numel() // _PIECE)
    if not pieces or not ACTIVATIONS[post]:
        return
    threads, most = threads_for(y.numel(), pieces)
    numbers, arrays = (ACTIVATIONS[post],), ((y.data_ptr(), y.numel()),)
    run_job(_body, make_job(most, pieces, numbers, arrays), threads)
