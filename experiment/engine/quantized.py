"""Keys and values in eight bits, and the arithmetic between them and the model's precision.

    values  [2, blocks, kv_heads, block_size, head_dim]    int8, or float8_e4m3fn
    scales  [2, blocks, kv_heads]                          float32, powers of two; int8 alone

        x ──► q = floor(x / s) ──► (q + ½) · s         off by at most s / 2
              s = the smallest power of two with |x| <= 127 · s in all slots of block and head

A block is written token by token, so its scale must grow while it already holds numbers. With
powers of two and rounding down, ``floor(floor(x / s) / 2) = floor(x / 2s)``: bringing a block to
a larger scale gives exactly the numbers that this scale would have given at once. The error
neither adds up nor depends on the order in which slots were written. (A scale of absmax / 127
and rounding to nearest is up to twice as fine for a block that is written at once, but every
growth adds an error of its own.) Scales shared by a block that are powers of two are those of the
OCP Microscaling formats; a half added when reading makes it a mid-rise quantiser.

-128 is no number here: it marks a slot that nobody may read, and reads as NaN. A block of which
no slot was written has the scale NaN. float8_e4m3fn has a NaN of its own and needs no scale: what
lies beyond ±448 becomes ±448, as in vLLM without calibrated scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from experiment.engine.step_inputs import StepInputs

POISON = -128
LARGEST = 127
FP8 = torch.float8_e4m3fn
FP8_LARGEST = 448.0
FP8_NAN = 0x7F  # the bits of it
# Torch's names of the values of ``cache.kv_dtype``; ``auto`` is the model's own.
KV_DTYPES = {"int8": torch.int8, "fp8": FP8}
# Of a scale, with the bias of a float32: a half of it must be a normal number.
_SMALLEST_EXPONENT = 127 - 100
# Added to the bits of a float32, it carries from a mantissa above 1.984375 to the exponent.
_CARRY = (1 << 17) - 1


@dataclass(frozen=True, slots=True)
class QuantizedKV:
    """One layer of a quantised pool, see the drawing above. ``scales`` is None for fp8."""

    values: torch.Tensor
    scales: torch.Tensor | None

    @property
    def shape(self) -> torch.Size:
        """[2, blocks, kv_heads, block_size, head_dim]."""
        return self.values.shape


LayerKV = torch.Tensor | QuantizedKV
Rescale = Callable[[torch.Tensor, StepInputs, torch.Tensor, torch.Tensor], None]


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The smallest power of two s >= 2 to the -100 with ``largest <= 127 * s``.

    NaN for what is no number. Read from the bits of a float32, because a division by 127 rounds:
    127 is 1.984375 times 64, so a larger mantissa takes the next exponent.
    """
    exponent = ((largest.view(torch.int32) + _CARRY) >> 23) - 6
    scale = (exponent.clamp(min=_SMALLEST_EXPONENT) << 23).view(torch.float32)
    return scale.masked_fill(~largest.isfinite(), float("nan"))


def quantize(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``floor(x / scale)`` as int8; -128 where the scale is NaN. Any shapes that broadcast."""
    ratio = (x / scale).floor_().clamp_(-LARGEST, LARGEST)
    return ratio.nan_to_num_(nan=POISON).to(torch.int8)


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``(q + 1/2) * scale``, NaN for -128. Exact in bfloat16 too: q + 1/2 has eight bits."""
    x = (values.float() + 0.5) * scale
    return x.masked_fill(values == POISON, float("nan")).to(dtype)


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Each number to the nearest of float8_e4m3fn; what lies beyond ±448 becomes ±448."""
    return x.clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8)


def rescale(values: torch.Tensor, inputs: StepInputs, old: torch.Tensor, new: torch.Tensor) -> None:
    """Bring the numbers of all blocks of a step to larger scales.

    Args:
        values: of a layer, [2, blocks, kv_heads, block_size, head_dim].
        inputs: the step.
        old: scales of the blocks that it writes, [2, written blocks, kv_heads].
        new: the same, as they shall be.
    """
    blocks, _ = inputs.touched
    values[:, blocks] = _shifted(values[:, blocks], old, new)


def write(
    kv: QuantizedKV, inputs: StepInputs, rows: torch.Tensor, rescale: Rescale = rescale
) -> None:
    """Put new tokens into their slots in int8; where a block's scale is too small, enlarge it.

    On a GPU, and in the static rows of a graph, nothing is decided on the host; on a CPU only
    blocks are read whose scale grows.

    Args:
        kv: the layer.
        inputs: the step. What would go to rows of padding is that of the first row instead.
        rows: keys and values, [2, tokens, kv_heads, head_dim].
        rescale: does what :func:`rescale` does.
    """
    assert kv.scales is not None
    blocks, which = inputs.touched
    offsets, live = inputs.slot_offsets, inputs.live
    if live is not None:
        source = which * live
        rows, offsets = rows[:, source], offsets[source]
    rows = rows.float()
    old = kv.scales[:, blocks]  # [2, written blocks, kv_heads]
    needed = scale_of(_largest(rows, which, old))
    # NaN among the old ones is a block that begins; among the needed ones it spoils its block.
    new = torch.where(old > needed, old, needed)
    written = quantize(rows, new[:, which, :, None]).transpose(0, 1)
    place = (slice(None), blocks[which], slice(None), offsets)
    if live is not None:  # all rows are padding while a graph is captured
        new = torch.where(live[0], new, old)
        written = torch.where(live[0], written, kv.values[place])
    if live is not None or kv.values.device.type != "cpu":
        rescale(kv.values, inputs, old, new)
        kv.scales[:, blocks] = new
    elif not bool((needed <= old).all()):  # a block begins, or grows, or is given what is no number
        half, block, head = chosen = torch.where((new > old) | new.isnan())
        grown = (half, blocks[block], head)
        kv.values[grown] = _shifted(kv.values[grown], old[chosen], new[chosen])
        kv.scales[:, blocks] = new
    kv.values[place] = written


def _largest(rows: torch.Tensor, which: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Largest absolute number that goes to each block and head: [2, written blocks, kv_heads]."""
    peak = rows.abs().amax(-1)  # [2, tokens, kv_heads]; NaN where there is one
    index = which[None, :, None].expand_as(peak)
    return torch.zeros_like(like).scatter_reduce(1, index, peak, "amax")


def _shifted(values: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Numbers of some blocks and heads [..., block_size, head_dim] at larger scales [...].

    A shift of an integer rounds down, also below zero; by seven places any int8 has become 0
    or -1.
    """
    doubled = (new.view(torch.int32) >> 23) - (old.view(torch.int32) >> 23)
    shift = doubled.clamp(0, 7).to(torch.int8)[..., None, None]
    unreadable = (values == POISON) | new.isnan()[..., None, None]
    return (values >> shift).masked_fill(unreadable, POISON)


def from_blocks(kv: torch.Tensor, dtype: torch.dtype) -> QuantizedKV:
    """A whole layer in the model's precision, NaN where nothing was written, in eight bits.

    ``kv`` is [2, blocks, kv_heads, block_size, head_dim]. By the order in which a block was written
    nothing changes, so this is what a pool of ``dtype`` would hold.
    """
    if dtype == FP8:
        return QuantizedKV(to_fp8(kv), None)
    x = kv.float()
    empty = x.isnan().flatten(3).all(-1)
    scales = scale_of(x.nan_to_num(0.0).abs().amax((3, 4)))
    scales = scales.masked_fill(empty, float("nan"))
    values = quantize(x, scales[..., None, None])
    return QuantizedKV(values.masked_fill(x.isnan(), POISON), scales)


def to_blocks(kv: QuantizedKV, dtype: torch.dtype) -> torch.Tensor:
    """Every slot of some blocks in ``dtype``, NaN where nothing was written; shape as ``kv``."""
    if kv.scales is None:
        return kv.values.to(dtype)
    return dequantize(kv.values, kv.scales[..., None, None], dtype)


def take(kv: QuantizedKV, blocks: torch.Tensor) -> QuantizedKV:
    """Some blocks of a layer in the order given: [2, chosen, kv_heads, block_size, head_dim]."""
    scales = None if kv.scales is None else kv.scales.index_select(1, blocks)
    chosen = bits(kv.values).index_select(1, blocks)
    return QuantizedKV(chosen.view(kv.values.dtype), scales)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes where torch can index bytes only."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
