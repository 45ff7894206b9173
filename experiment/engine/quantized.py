"""Keys and values in eight bits, and the arithmetic between them and the model's precision.

    values  [2, blocks, kv_heads, block_size, head_dim]    int8, or float8_e4m3fn
    scales  [2, blocks, kv_heads]                          float32, powers of two; int8 alone

        x ──► q = floor(x / s)  ──►  (q + ½) · s       off by at most s / 2
              s = the smallest power of two with |x| <= 127 · s for all slots of block and head

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

from dataclasses import dataclass

import torch

POISON = -128
LARGEST = 127
FP8 = torch.float8_e4m3fn
FP8_LARGEST = 448.0
FP8_NAN = 0x7F  # the bits of it
# Torch's names of the values of ``cache.kv_dtype``; ``auto`` is the model's own.
KV_DTYPES = {"int8": torch.int8, "fp8": FP8}
# The smallest scale of a block that is not all zeros: below it a float32 loses bits.
_SMALLEST_EXPONENT = -126


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


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """The smallest power of two s with ``largest <= 127 * s``; 0 for 0, NaN for what is infinite.

    Taken from the exponent, because a division by 127 would round.
    """
    mantissa, exponent = torch.frexp(largest)
    exponent = exponent - 7 + (mantissa > LARGEST / (LARGEST + 1)).to(exponent.dtype)
    # Put together from its bits: torch.ldexp goes through pow, which may round.
    scale = ((exponent.clamp(_SMALLEST_EXPONENT, 127) + 127) << 23).view(torch.float32)
    scale = torch.where(largest == 0, torch.zeros_like(scale), scale)
    return torch.where(largest.isfinite(), scale, torch.full_like(scale, float("nan")))


def quantize(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``floor(x / scale)`` as int8; -128 where that is no number and the scale is not 0."""
    ratio = torch.where(scale == 0, torch.zeros_like(x), (x / scale).floor())
    ratio = ratio.clamp(-LARGEST, LARGEST)
    return torch.where(ratio.isnan(), torch.full_like(ratio, POISON), ratio).to(torch.int8)


def dequantize(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``(q + 1/2) * scale``, NaN for -128. Exact in bfloat16 too: q + 1/2 has eight bits."""
    x = (values.float() + 0.5) * scale
    return x.masked_fill(values == POISON, float("nan")).to(dtype)


def write(
    kv: QuantizedKV, touched: tuple[torch.Tensor, torch.Tensor], offsets: torch.Tensor,
    rows: torch.Tensor,
) -> None:  # fmt: skip
    """Put new tokens into their slots; where a block's scale is too small, bring it to a larger.

    Args:
        kv: the layer.
        touched: the blocks that are written, each once, [written blocks], and which of them
            each token goes to, [tokens].
        offsets: slot in the block, [tokens].
        rows: keys and values, [2, tokens, kv_heads, head_dim].
    """
    blocks, which = touched
    if kv.scales is None:
        small = rows.float().clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8)
        bits(kv.values)[:, blocks[which], :, offsets] = bits(small).transpose(0, 1)
        return
    rows = rows.float()
    old = kv.scales[:, blocks]  # [2, written blocks, kv_heads]
    needed = scale_of(_largest(rows, which, old))
    # A number that is none spoils its block, as NaN must show; fmax would forget it.
    spoilt = needed.isnan()
    new = torch.fmax(old, needed).masked_fill(spoilt, float("nan"))
    if bool(((new > old) | spoilt).any()):
        kv.values[:, blocks] = _rescale(kv.values[:, blocks], old, new)
    kv.scales[:, blocks] = new
    kv.values[:, blocks[which], :, offsets] = quantize(rows, new[:, which, :, None]).transpose(0, 1)


def _largest(rows: torch.Tensor, which: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Largest absolute number that goes to each block and head: [2, written blocks, kv_heads]."""
    peak = rows.abs().amax(-1)  # [2, tokens, kv_heads]
    peak = torch.where(peak.isfinite(), peak, torch.full_like(peak, float("inf")))
    index = which[None, :, None].expand_as(peak)
    return torch.zeros_like(like).scatter_reduce(1, index, peak, "amax")


def _rescale(values: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Numbers of whole blocks [2, blocks, kv_heads, block_size, head_dim] at a larger scale.

    A shift of an integer rounds down, also below zero.
    """
    doubled = torch.frexp(new).exponent - torch.frexp(old).exponent
    # By seven places any int8 has become 0 or -1; zeros (scale 0) are zeros at any scale.
    shift = doubled.clamp(0, 7).masked_fill(~(old > 0) | ~(new > 0), 0).to(torch.int8)
    moved = values >> shift[..., None, None]
    keep = (values == POISON) | new.isnan()[..., None, None]
    return torch.where(keep, torch.full_like(values, POISON), moved)


def from_blocks(kv: torch.Tensor, dtype: torch.dtype) -> QuantizedKV:
    """A whole layer in the model's precision, NaN where nothing was written, in eight bits.

    By the order in which a block was written nothing changes, so this is what a pool of ``dtype``
    would hold.
    """
    if dtype == FP8:
        return QuantizedKV(kv.float().clamp(-FP8_LARGEST, FP8_LARGEST).to(FP8), None)
    x = kv.float()
    empty = x.isnan().flatten(3).all(-1)
    scales = scale_of(x.nan_to_num(0.0).abs().amax((3, 4)))
    scales = scales.masked_fill(empty, float("nan"))
    values = quantize(x, scales[..., None, None])
    return QuantizedKV(values.masked_fill(x.isnan(), POISON), scales)


def to_blocks(kv: QuantizedKV, dtype: torch.dtype) -> torch.Tensor:
    """Every slot of some blocks in ``dtype``, NaN where nothing was written."""
    if kv.scales is None:
        return kv.values.to(dtype)
    return dequantize(kv.values, kv.scales[..., None, None], dtype)


def take(kv: QuantizedKV, blocks: torch.Tensor) -> QuantizedKV:
    """Some blocks of a layer, in the order given."""
    scales = None if kv.scales is None else kv.scales.index_select(1, blocks)
    chosen = bits(kv.values).index_select(1, blocks)
    return QuantizedKV(chosen.view(kv.values.dtype), scales)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes where torch can index bytes only."""
    return x.view(torch.uint8) if x.dtype == FP8 else x
