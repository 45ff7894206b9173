"""What the Triton kernels share: tiles of keys and values, read in place through a block table.

    block size 4           positions of a tile   4   5   6   7   8   9   .   .      . behind the end
    table [ 7 | 2 | 5 ]    block                 2   2   2   2   5   5   5   5      reads position 9
                           offset                0   1   2   3   0   1   1   1      weighs nothing
                           row                   (block · kv_heads + head) · block_size + offset

A tile takes its rows from blocks of any size, so blocks of one slot and slabs run through the same
code. One row is ``head_dim`` numbers side by side, because heads stand outside the slots of a
block; a dimension that is no power of two is padded in registers and masked in memory.

Triton is imported here alone and in its neighbours ``triton_*``, and only in the process that runs
an arm. With ``TRITON_INTERPRET=1`` the same kernels run on CPU tensors, slowly, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from experiment.engine.quantized import POISON, LayerKV, QuantizedKV

LOG2_E = 1.4426950408889634
# How the numbers of a pool are read; values of the kernels' FORMAT.
PLAIN, INT8, FLOAT8 = 0, 1, 2
_INT8 = tl.constexpr(INT8)
_POISON = tl.constexpr(POISON & 255)
# Two buffers each of keys and values, beside all else in the 99 KiB of the smallest GPUs.
_BUFFER_BYTES = 64 << 10


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, statement by statement."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


# Whether kernels may hold PTX.
_ASSEMBLY = tl.constexpr(not interpreted() and torch.version.hip is None)
# PTX: two int8 pairs in one register to their lower and their upper numbers, in half precision.
# Added to 1152 in float16, as 0x6400 is 1024 and a step of its mantissa 1.
_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 upper;
    shr.u32 upper, $2, 8;
    lop3.b32 $0, $2, 0x00FF00FF, 0x64806480, 0x6A;
    lop3.b32 $1, upper, 0x00FF00FF, 0x64806480, 0x6A;
}""")
# Seven bits behind 128, minus 128 or, of a negative number, 256.
_TO_BFLOAT16 = tl.constexpr("""{
    .reg .b32 upper, bits, sign, one;
    mov.b32 one, 0x3F803F80;
    shr.u32 upper, $2, 8;
    lop3.b32 bits, $2, 0x007F007F, 0x43004300, 0x6A;
    lop3.b32 sign, $2, 0x00800080, 0xC300C300, 0x6A;
    fma.rn.bf16x2 $0, bits, one, sign;
    lop3.b32 bits, upper, 0x007F007F, 0x43004300, 0x6A;
    lop3.b32 sign, upper, 0x00800080, 0xC300C300, 0x6A;
    fma.rn.bf16x2 $1, bits, one, sign;
}""")


def jit(function: Callable[..., Any]) -> Any:
    """Triton's compiler for what kernels call, typed."""
    return triton.jit(function)


def kernel(*varying: str) -> Callable[[Callable[..., Any]], Any]:
    """Triton's compiler for what the host launches, typed.

    For integers named in ``varying`` one compiled kernel does; else Triton compiles another one
    where a value is 1, or a multiple of 16, which may happen while requests wait.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize=list(varying))

    return compiled


class Layer(NamedTuple):
    """One layer of the pool as kernels take it.

    Attributes:
        keys: [blocks, kv_heads, block_size, head_dim], contiguous; int8 as pairs, int16
            [.., head_dim / 2]. Values likewise.
        key_scales: [blocks, kv_heads] of an int8 pool; else ``keys``, and never read.
        value_scales: likewise.
        form: PLAIN, INT8 or FLOAT8.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor
    form: int


def layer_of(kv: LayerKV) -> Layer:
    """Unwrap a layer; views that are not contiguous are refused.

    Raises:
        ValueError: the tensor is not contiguous.
        RuntimeError: int8 with an odd head size.
    """
    numbers = kv.values if isinstance(kv, QuantizedKV) else kv
    if not numbers.is_contiguous():
        raise ValueError("a layer of the pool must be contiguous")
    keys, values = numbers.unbind(0)
    if not isinstance(kv, QuantizedKV):
        return Layer(keys, values, keys, values, PLAIN)
    if kv.scales is None:
        return Layer(keys, values, keys, values, FLOAT8)
    key_scales, value_scales = kv.scales.contiguous().unbind(0)
    keys, values = numbers.view(torch.int16).unbind(0)
    return Layer(keys, values, key_scales, value_scales, INT8)


def operands(dtype: torch.dtype) -> Any:
    """Triton's type of the operands of matrix products.

    The interpreter keeps bfloat16 as bits and multiplies those, so there it is float32.
    """
    wide = dtype == torch.bfloat16 and interpreted()
    return tl.float32 if wide else getattr(tl, str(dtype).removeprefix("torch."))


def stages_of(tile: int, dim: int, element_bytes: int) -> int:
    """Stages of a loop over tiles: 3 gives keys and values two buffers each, 2 gives them one."""
    return 3 if 4 * tile * padded(dim) * element_bytes <= _BUFFER_BYTES else 2


def padded(count: int) -> int:
    """The next power of two, 16 at least: the smallest side of a matrix for tensor cores."""
    return max(16, int(triton.next_power_of_2(count)))


def tile_of(dim: int, element_bytes: int, tile_bytes: int) -> int:
    """Positions in a tile: a power of two of 16 to 64 whose keys fit ``tile_bytes``, or 16."""
    return min(64, max(16, tile_bytes // (padded(dim) * element_bytes)))


@jit
def tile_of_positions(first, end, TILE: tl.constexpr):
    """Positions of a tile, uint32 [tile]; behind the end the last one again, so no load is masked.

    Unsigned, as a division by a power of two is then a shift.
    """
    return tl.minimum(first + tl.arange(0, TILE), tl.maximum(end - 1, 0)).to(tl.uint32)


@jit
def blocks_of(table, positions, SIZE: tl.constexpr):
    """Ids of the blocks where positions lie, int32 [tile].

    A loop carries those of its next tile: loads of keys and values that wait for a load of the
    same pass would get one buffer, not two.
    """
    return tl.load(table + positions // SIZE)


@jit
def to_columns(x, FORMAT: tl.constexpr):
    """Rows [rows, padded dim] in the order of a tile's columns: of int8 the even ones first."""
    if FORMAT == _INT8:
        pairs = tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2])
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), x.shape)
    return x


@jit
def from_columns(x, FORMAT: tl.constexpr):
    """The inverse of ``to_columns``."""
    if FORMAT == _INT8:
        pairs = tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2])
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), x.shape)
    return x


@jit
def split_pairs(pairs, TYPE: tl.constexpr):
    """Pairs of int8, int16 as they lie in memory, to the lower and the upper ones as TYPE.

    In half precision without the slow instructions that convert integers: a byte becomes the
    mantissa of a number of known exponent, two numbers at a time.
    """
    if _ASSEMBLY and tl.float16 == TYPE:
        low, high = tl.inline_asm_elementwise(
            _TO_FLOAT16, "=r,=r,r", [pairs], (tl.float16, tl.float16), is_pure=True, pack=2
        )
        return low - 1152, high - 1152
    if _ASSEMBLY and tl.bfloat16 == TYPE:
        return tl.inline_asm_elementwise(
            _TO_BFLOAT16, "=r,=r,r", [pairs], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=2
        )
    return (((pairs & 255) ^ 128) - 128).to(TYPE), (pairs >> 8).to(TYPE)


@jit
def load_rows(numbers, row, DIM: tl.constexpr, DIM_PAD: tl.constexpr):
    """Rows as they lie in memory, [tile, padded dim]."""
    columns = tl.arange(0, DIM_PAD)
    at = numbers + row[:, None] * DIM + columns[None, :]
    return tl.load(at) if DIM == DIM_PAD else tl.load(at, mask=(columns < DIM)[None, :], other=0.0)


@jit
def read_rows(
    numbers, row,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, FORMAT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows of keys or values as TYPE, [tile, padded dim]; int8 with neither its half nor scale."""
    if FORMAT == _INT8:
        pairs = load_rows(numbers, row, DIM // 2, DIM_PAD // 2)
        low, high = split_pairs(pairs, TYPE)
        return tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), [pairs.shape[0], DIM_PAD])
    return load_rows(numbers, row, DIM, DIM_PAD).to(TYPE)


@jit
def read_scales(numbers, scales, page, row, DIM: tl.constexpr):
    """Scales of int8 slots, float32 [tile]; NaN of a poisoned slot, as its first number tells."""
    mark = tl.load(numbers + row * (DIM // 2)) & 255
    return tl.where(mark == _POISON, float("nan"), tl.load(scales + page))


@jit
def attend_tile(
    q, half, keys, values, key_scales, value_scales, blocks, positions, head, visible, scale,
    best, total, acc,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    FORMAT: tl.constexpr, TYPE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """One more tile: the new maximum and sum [rows], and the weighted values [rows, padded dim].

    After Milakov and Gimelshein (2018), as in FlashAttention; scores in units of log2. A NaN among
    the visible keys or values stays: ``exp2`` and the products keep it.

    Scales of int8 are applied to scores, not to every number: weights are those of scores plus
    log2(scale of the value), so they fit half precision, and their sum is taken without it.
    ``half`` [rows, 1] is what the half of every number of a key adds to its product with ``q``.
    """
    page = blocks.to(tl.int64) * KV_HEADS + head
    row = page * SIZE + positions % SIZE
    k = read_rows(keys, row, DIM, DIM_PAD, FORMAT, TYPE)
    v = read_rows(values, row, DIM, DIM_PAD, FORMAT, TYPE)
    if DOT:
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
    else:
        s = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32)[None, :, :], 2)
    shares = 1.0
    if FORMAT == _INT8:
        v += 0.5
        key_scale = read_scales(keys, key_scales, page, row, DIM)[None, :]
        value_scale = read_scales(values, value_scales, page, row, DIM)[None, :]
        # A power of two: from its bits come its logarithm and its inverse.
        bits = value_scale.to(tl.int32, bitcast=True)
        exponent = tl.where(value_scale > 0, ((bits >> 23) - 127).to(tl.float32), value_scale)
        shares = (0x7F000000 - bits).to(tl.float32, bitcast=True)
        s = (s + half) * (key_scale * scale) + exponent
    else:
        s *= scale
    s = tl.where(visible, s, float("-inf"))
    new = tl.maximum(best, tl.max(s, 1))
    shrink = tl.exp2(best - new)
    weights = tl.exp2(s - new[:, None])
    total = total * shrink[:, None] + weights * shares
    if DOT:
        add = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    else:
        add = tl.sum(weights[:, :, None] * v.to(tl.float32)[None, :, :], 1)
    return new, total, acc * shrink[:, None] + add
