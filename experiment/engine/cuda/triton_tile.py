"""Functions of the Triton kernels: tiles of keys and values, read through a block table.

    block size 4           positions of a tile   4   5   6   7   8   9   .   .      . beyond the end
    table [ 7 | 2 | 5 ]    block                 2   2   2   2   5   5   5   5      reads position 9
                           offset                0   1   2   3   0   1   1   1      weight 0
                           row                   (block · kv_heads + head) · block_size + offset

A tile takes rows from blocks of any size, so that blocks of one slot and slabs use the same code. A
row is ``head_dim`` contiguous numbers, because heads are outside the slots of a block. A dimension
that is no power of two is padded in registers and masked in memory.

Triton is imported only here and in ``triton_*``, in the process that runs an arm. With
``TRITON_INTERPRET=1`` the kernels run on CPU tensors, slowly, for tests.
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
# Encoding of a pool's numbers; values of the kernels' FORMAT.
PLAIN, INT8, FLOAT8 = 0, 1, 2
_INT8 = tl.constexpr(INT8)
_POISON = tl.constexpr(POISON & 255)
# Two buffers each of keys and values, within the 99 KiB of the smallest GPUs.
_BUFFER_BYTES = 64 << 10


def interpreted() -> bool:
    """Whether Triton interprets kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


# Whether kernels may contain PTX.
_ASSEMBLY = tl.constexpr(not interpreted() and torch.version.hip is None)
# PTX: convert two int8 pairs in one register to their lower and upper numbers in float16, each plus
# 1152: 0x6400 is 1024, and its mantissa has steps of 1.
_TO_FLOAT16 = tl.constexpr("""{
    .reg .b32 upper;
    shr.u32 upper, $2, 8;
    lop3.b32 $0, $2, 0x00FF00FF, 0x64806480, 0x6A;
    lop3.b32 $1, upper, 0x00FF00FF, 0x64806480, 0x6A;
}""")
# The same in bfloat16: seven bits plus 128, minus 128 or, for negative numbers, 256.
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
    """Typed ``triton.jit`` for functions called by kernels."""
    return triton.jit(function)


def kernel(*varying: str) -> Callable[[Callable[..., Any]], Any]:
    """Typed ``triton.jit`` for kernels launched by the host.

    Integers named in ``varying`` are not specialised. Otherwise Triton compiles variants for 1 and
    for multiples of 16, perhaps while requests wait.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        return triton.jit(function, do_not_specialize=list(varying))

    return compiled


class Layer(NamedTuple):
    """One layer of the pool, as passed to kernels.

    Attributes:
        keys: [blocks, kv_heads, block_size, head_dim], contiguous; int8 as pairs, int16
            [.., head_dim / 2]. Values likewise.
        key_scales: [blocks, kv_heads] of an int8 pool; otherwise ``keys``, never read.
        value_scales: likewise.
        form: PLAIN, INT8 or FLOAT8.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor
    form: int


def layer_of(kv: LayerKV) -> Layer:
    """Unwrap a contiguous layer.

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

    The interpreter would multiply the bits of bfloat16, so it uses float32.
    """
    wide = dtype == torch.bfloat16 and interpreted()
    return tl.float32 if wide else getattr(tl, str(dtype).removeprefix("torch."))


def stages_of(tile: int, dim: int, element_bytes: int) -> int:
    """Pipeline stages of a loop over tiles: 3 for two buffers of keys and of values, 2 for one."""
    return 3 if 4 * tile * padded(dim) * element_bytes <= _BUFFER_BYTES else 2


def padded(count: int) -> int:
    """The next power of two, at least 16: the smallest matrix side of tensor cores."""
    return max(16, int(triton.next_power_of_2(count)))


def tile_of(dim: int, element_bytes: int, tile_bytes: int) -> int:
    """Positions in a tile: a power of two from 16 to 64 whose keys fit ``tile_bytes``, or 16."""
    return min(64, max(16, tile_bytes // (padded(dim) * element_bytes)))


@jit
def tile_of_positions(first, end, TILE: tl.constexpr):
    """Positions of a tile, uint32 [tile]; the last one repeats beyond the end: loads need no mask.

    Unsigned, so that a division by a power of two is a shift.
    """
    return tl.minimum(first + tl.arange(0, TILE), tl.maximum(end - 1, 0)).to(tl.uint32)


@jit
def blocks_of(table, positions, SIZE: tl.constexpr):
    """Block ids of positions, int32 [tile].

    A loop loads those of its next tile. Loads of keys and values that depend on a load of the same
    iteration would get one buffer, not two.
    """
    return tl.load(table + positions // SIZE)


@jit
def to_columns(x, FORMAT: tl.constexpr):
    """Reorder rows [rows, padded dim] to a tile's column order: int8 has even columns first."""
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
    """Convert pairs of int8, stored as int16, to the lower and upper numbers as TYPE.

    Half precision avoids slow integer conversions: a byte becomes the mantissa of a number with a
    known exponent, two numbers at once.
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
    """Rows as stored, [tile, padded dim]."""
    columns = tl.arange(0, DIM_PAD)
    at = numbers + row[:, None] * DIM + columns[None, :]
    return tl.load(at) if DIM == DIM_PAD else tl.load(at, mask=(columns < DIM)[None, :], other=0.0)


@jit
def read_rows(
    numbers, row,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, FORMAT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """Rows of keys or values as TYPE, [tile, padded dim]; int8 without its half and scale."""
    if FORMAT == _INT8:
        pairs = load_rows(numbers, row, DIM // 2, DIM_PAD // 2)
        low, high = split_pairs(pairs, TYPE)
        return tl.reshape(tl.permute(tl.join(low, high), (0, 2, 1)), [pairs.shape[0], DIM_PAD])
    return load_rows(numbers, row, DIM, DIM_PAD).to(TYPE)


@jit
def read_scales(numbers, scales, page, row, DIM: tl.constexpr):
    """Scales of int8 slots, float32 [tile]; NaN for a poisoned slot, marked by its first number."""
    mark = tl.load(numbers + row * (DIM // 2)) & 255
    return tl.where(mark == _POISON, float("nan"), tl.load(scales + page))


@jit
def attend_tile(
    q, half, keys, values, key_scales, value_scales, blocks, positions, head, visible, scale,
    best, total, acc,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr,
    FORMAT: tl.constexpr, TYPE: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Process one tile; return the new maximum, sum [rows] and weighted values [rows, padded dim].

    After Milakov and Gimelshein (2018), as in FlashAttention; scores are in units of log2. NaN
    among the visible keys or values propagates.

    Scales of int8 are applied to scores instead of numbers. Weights are computed from scores plus
    log2(value scale), so that they fit half precision; their sum is taken without it. ``half``
    [rows, 1] is the product of ``q`` with the half that is added to each number of a key.
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
        # A power of two: its bits give its logarithm and its inverse.
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
