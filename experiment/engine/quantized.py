"""Quantized keys and values in eight bits.

    values  [2, blocks, kv_heads, block_size, head_dim]    int8, or float8_e4m3fn
    scales  [2, blocks, kv_heads]                          float32, powers of two; int8 only

        x ──► q = floor(x / s) ──► (q + ½) · s         error at most s / 2
              s = the smallest power of two with |x| <= 127 · s in all slots of block and head

A block is written token by token, so its scale must grow while it already holds numbers. With
powers of two and rounding down, ``floor(floor(x / s) / 2) = floor(x / 2s)``. Rescaling a block
gives exactly the numbers of the larger scale. The error does not accumulate or depend on the order
of writes. A scale of absmax / 127 with rounding to nearest is up to twice as fine for a block
written at once, but each growth adds an error. Shared power-of-two scales are those of the OCP
Microscaling formats; adding a half when reading makes it a mid-rise quantizer.

-128 marks an unreadable slot and reads as NaN. An unwritten block has the scale NaN. float8_e4m3fn
has its own NaN and needs no scale: numbers beyond ±448 are clamped, as in vLLM without calibrated
scales.
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
FP8_NAN = 0x7F  # its bits
# Torch dtypes of the values of ``cache.kv_dtype`` other than ``auto``.
KV_DTYPES = {"int8": torch.int8, "fp8": FP8}
# Biased exponent of the smallest scale: half of a scale must be a normal number.
_SMALLEST_EXPONENT = 127 - 100
# Added to the bits of a float32, it carries from a mantissa above 1.984375 to the exponent.
_CARRY = (1 << 17) - 1


@dataclass(frozen=True, slots=True)
class QuantizedKV:
    """One layer of a quantized pool, see the drawing above. ``scales`` is None for fp8."""

    values: torch.Tensor
    scales: torch.Tensor | None

    @property
    def shape(self) -> torch.Size:
        """[2, blocks, kv_heads, block_size, head_dim]."""
        return self.values.shape


LayerKV = torch.Tensor | QuantizedKV
Rescale = Callable[[torch.Tensor, StepInputs, torch.Tensor, torch.Tensor], None]


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The smallest power of two s >= 2 ** -100 with ``largest <= 127 * s``; NaN if not finite.

    Computed from the bits of a float32, because a division by 127 rounds. 127 is 1.984375 × 64, so
    a larger mantissa takes the next exponent.
    """
    exponent = ((largest.view(torch.int32) + _CARRY) >> 23) - 6
    scale = (exponent.clamp(min=_SMALLEST_EXPONENT) << 23).view(torch.float32)
    return scale.masked_fill(~largest.isfinite(), float("nan"))


def quantize(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Compute ``floor(x / scale)`` as int8; -128 where the scale is NaN. Shapes broadcast."""
    ratio = (x / scale).floor_().clamp_(-LARGEST, LARGEST)
    return ratio.nan_to_num_(nan=POISON).to(torch.int8)


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute ``(q + 1/2) * scale``; NaN for -128. Exact in bfloat16: q + 1/2 has eight bits."""
    x = (values.float() + 0.5) * scale
    return x.masked_fill(values == POISON, float("nan")).to(dtype)


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Round to float8_e4m3fn; numbers beyond ±448 are clamped."""
    return x.clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8)


def rescale(values: torch.Tensor, inputs: StepInputs, old: torch.Tensor, new: torch.Tensor) -> None:
    """Convert the numbers of all blocks of a step to larger scales.

    Args:
        values: of a layer, [2, blocks, kv_heads, block_size, head_dim].
        inputs: the step.
        old: present scales of the written blocks, [2, written blocks, kv_heads].
        new: their new scales.
    """
    blocks, _ = inputs.touched
    values[:, blocks] = _shifted(values[:, blocks], old, new)


def write(
    kv: QuantizedKV, inputs: StepInputs, rows: torch.Tensor, rescale: Rescale = rescale
) -> None:
    """Write new tokens in int8; enlarge the scale of a block if it is too small.

    On a GPU, and in the static rows of a graph, nothing is decided on the host. On a CPU only
    blocks whose scale grows are read.

    Args:
        kv: the layer.
        inputs: the step. Rows of padding write the first row instead.
        rows: keys and values, [2, tokens, kv_heads, head_dim].
        rescale: a replacement of :func:`rescale`.
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
    # An old NaN is an empty block; a needed NaN makes its block unreadable.
    new = torch.where(old > needed, old, needed)
    written = quantize(rows, new[:, which, :, None]).transpose(0, 1)
    place = (slice(None), blocks[which], slice(None), offsets)
    if live is not None:  # all rows are padding while a graph is captured
        new = torch.where(live[0], new, old)
        written = torch.where(live[0], written, kv.values[place])
    if live is not None or kv.values.device.type != "cpu":
        rescale(kv.values, inputs, old, new)
        kv.scales[:, blocks] = new
    elif not bool((needed <= old).all()):  # a block is new, grows, or gets NaN or infinity
        half, block, head = chosen = torch.where((new > old) | new.isnan())
        grown = (half, blocks[block], head)
        kv.values[grown] = _shifted(kv.values[grown], old[chosen], new[chosen])
        kv.scales[:, blocks] = new
    kv.values[place] = written


def _largest(rows: torch.Tensor, which: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Largest absolute number written to each block and head: [2, written blocks, kv_heads]."""
    peak = rows.abs().amax(-1)  # [2, tokens, kv_heads]; propagates NaN
    index = which[None, :, None].expand_as(peak)
    return torch.zeros_like(like).scatter_reduce(1, index, peak, "amax")


def _shifted(values: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Convert numbers of blocks and heads [..., block_size, head_dim] to larger scales [...].

    An integer shift rounds down, also below zero; after seven places any int8 is 0 or -1.
    """
    doubled = (new.view(torch.int32) >> 23) - (old.view(torch.int32) >> 23)
    shift = doubled.clamp(0, 7).to(torch.int8)[..., None, None]
    unreadable = (values == POISON) | new.isnan()[..., None, None]
    return (values >> shift).masked_fill(unreadable, POISON)


def from_blocks(kv: torch.Tensor, dtype: torch.dtype) -> QuantizedKV:
    """Quantize a whole layer in the model's dtype, with NaN in unwritten slots.

    ``kv`` is [2, blocks, kv_heads, block_size, head_dim]. The result equals that of token-wise
    writes.
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
    """Dequantize all slots to ``dtype``, with NaN in unwritten ones; same shape as ``kv``."""
    if kv.scales is None:
        return kv.values.to(dtype)
    return dequantize(kv.values, kv.scales[..., None, None], dtype)


def take(kv: QuantizedKV, blocks: torch.Tensor) -> QuantizedKV:
    """Select blocks of a layer, in the given order: [2, chosen, kv_heads, block_size, head_dim]."""
    scales = None if kv.scales is None else kv.scales.index_select(1, blocks)
    chosen = bits(kv.values).index_select(1, blocks)
    return QuantizedKV(chosen.view(kv.values.dtype), scales)


def bits(x: torch.Tensor) -> torch.Tensor:
    """View as bytes, for dtypes that torch cannot index."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
