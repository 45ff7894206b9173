"""Tensors of the block pool.

    kv  [layers, 2, blocks, kv_heads, block_size, head_dim]
                 |
                 0 keys, 1 values

Heads are outside the slots of a block ("head-major"), so that a kernel reads contiguous memory for
each head. Unreadable slots hold NaN: a slot without NaN was written, and a stale read corrupts the
logits.

int8 uses -128 for NaN, and a scale for each layer, K or V, block and head; an unwritten block has
the scale NaN. See :mod:`experiment.engine.quantized`.

    scales  [layers, 2, blocks, kv_heads]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from experiment.engine import quantized
from experiment.engine.quantized import FP8, LayerKV, QuantizedKV, Rescale, bits
from experiment.engine.step_inputs import StepInputs, to_device
from experiment.engine.swap import Transfers, transfers_for
from kvsim.core.step import RELEASING_OPS, BlockOp, OpKind, StepPlan
from kvsim.sizing.geometry import KVGeometry

Copy = Callable[[torch.Tensor, Sequence[int], torch.Tensor, Sequence[int]], None]
Scatter = Callable[[torch.Tensor, StepInputs, torch.Tensor, torch.Tensor], None]


class PoisonError(Exception):
    """The tensors contradict the bookkeeping: an internal error."""


@dataclass(frozen=True, slots=True)
class _Store:
    """One tensor of the pool, with blocks in its third dimension, and its host copy."""

    device: torch.Tensor
    host: torch.Tensor | None
    poison: float


class KVPool:
    """Keys and values of all layers in fixed-size blocks.

    The memory is written on creation, so that it is resident, like a preallocated contiguous cache.

    Args:
        geometry: of the model; its element and scale sizes are those of ``dtype``.
        num_blocks: physical blocks.
        block_size: slots in a block.
        dtype: the model's dtype, or int8 or float8_e4m3fn.
        host_blocks: blocks in host memory for swapped-out requests.
        transfers: copies blocks to the host and back; None: the default of the device.
        poison_freed: overwrite freed blocks with NaN; otherwise stale reads are not detected.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        host_blocks: int = 0,
        transfers: Transfers | None = None,
        poison_freed: bool = True,
    ) -> None:
        heads, nan = geometry.kv_heads, float("nan")
        self._transfers = transfers or transfers_for(device)

        def store(tail: tuple[int, ...], dtype: torch.dtype, poison: float) -> _Store:
            kind = torch.uint8 if dtype == FP8 else dtype
            shape = (geometry.layers, 2, num_blocks, *tail)
            made = torch.full(shape, poison, dtype=kind, device=device).view(dtype)
            if not host_blocks:
                return _Store(made, None, poison)
            shape = (geometry.layers, 2, host_blocks, *tail)
            return _Store(made, self._transfers.host(shape, poison, kind).view(dtype), poison)

        poison = {torch.int8: quantized.POISON, FP8: quantized.FP8_NAN}.get(dtype, nan)
        self._stores = [store((heads, block_size, geometry.head_dim), dtype, poison)]
        if dtype == torch.int8:
            self._stores.append(store((heads,), torch.float32, nan))
        # A kernel may replace these.
        self.scatter: Scatter = scatter
        self.rescale: Rescale = quantized.rescale
        # In eight bits an unwritten block is recognised by its scale.
        self._poison_freed = poison_freed or dtype in (torch.int8, FP8)
        self._owners = [0] * num_blocks
        self.num_blocks = num_blocks
        self.block_size = block_size

    def disable_poisoning(self) -> None:
        """From now on do not overwrite freed blocks."""
        self._poison_freed = self.quantized

    @property
    def kv(self) -> torch.Tensor:
        """[layers, 2, blocks, kv_heads, block_size, head_dim]."""
        return self._stores[0].device

    @property
    def host(self) -> torch.Tensor | None:
        """The same for blocks in host memory, after pending copies."""
        self._transfers.settle()
        return self._stores[0].host

    @property
    def scales(self) -> torch.Tensor | None:
        """[layers, 2, blocks, kv_heads] of an int8 pool."""
        return self._stores[1].device if len(self._stores) > 1 else None

    @property
    def quantized(self) -> bool:
        """Whether the pool is quantized."""
        return self.kv.dtype in (torch.int8, FP8)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors on the device."""
        return [store.device for store in self._stores]

    def layer(self, index: int) -> LayerKV:
        """One layer: [2, blocks, kv_heads, block_size, head_dim]."""
        kv = self.kv[index]
        scales = None if self.scales is None else self.scales[index]
        return QuantizedKV(kv, scales) if self.quantized else kv

    def write(
        self, layer: int, inputs: StepInputs, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Write the step's keys and values, each [tokens, kv_heads, head_dim], into their slots."""
        kv = self.layer(layer)
        if not isinstance(kv, QuantizedKV):
            self.scatter(kv, inputs, keys, values)
        elif kv.scales is None:
            small = (bits(quantized.to_fp8(rows)) for rows in (keys, values))
            self.scatter(bits(kv.values), inputs, *small)
        else:
            quantized.write(kv, inputs, torch.stack((keys, values)), self.rescale)

    def apply(self, plan: StepPlan) -> None:
        """Apply the block operations of a plan in order.

        Copies and swaps move content. A block without owner whose content is not cached becomes
        unreadable.
        """
        for op in plan.ops:
            self._apply(op)

    def _apply(self, op: BlockOp) -> None:
        if op.kind is OpKind.SWAP_OUT:
            self._swap(op, self._transfers.out)
        if op.kind in (OpKind.ALLOCATE, OpKind.SHARE, OpKind.COPY, OpKind.SWAP_IN):
            for block in op.blocks:
                self._owners[block] += 1
        if op.kind is OpKind.COPY:
            for store in self._stores:
                kept = bits(store.device)
                kept[:, :, self._index(op.blocks)] = kept[:, :, self._index(op.sources)]
            for block in op.sources:
                self._owners[block] -= 1
        if op.kind in RELEASING_OPS:
            for block in op.blocks:
                self._owners[block] -= 1
        if op.kind is OpKind.EVICT or op.kind in RELEASING_OPS:
            gone = [b for b in op.blocks if not self._owners[b] and b not in op.cached]
            if self._poison_freed:
                self.poison(gone)
        if op.kind is OpKind.SWAP_IN:
            self._swap(op, self._transfers.back)

    def _swap(self, op: BlockOp, copy: Copy) -> None:
        for store in self._stores:
            if store.host is None:
                raise PoisonError("blocks are swapped and there is no host memory for them")
            copy(store.device, op.blocks, store.host, op.sources)

    def poison(self, blocks: Iterable[int]) -> None:
        """Overwrite whole blocks with NaN or its equivalent."""
        index = self._index(blocks)
        if index.numel():
            for store in self._stores:
                bits(store.device).index_fill_(2, index, store.poison)

    def _index(self, blocks: Iterable[int]) -> torch.Tensor:
        return to_device(torch.tensor(list(blocks), dtype=torch.long), self.kv.device)

    def poisoned_bytes(self) -> int:
        """Bytes of slots and scales that hold poison, determined from the tensors alone."""
        layers, two, blocks, heads, block_size, dim = self.kv.shape
        unwritten = blocks * block_size - self.written_slots()
        empty = 0 if self.scales is None else int(self.scales.isnan().sum().item())
        in_scales = empty * self._stores[-1].device.element_size()
        return unwritten * layers * two * heads * dim * self.kv.element_size() + in_scales

    def written_slots(self) -> int:
        """Count slots without poison, from the tensors alone.

        Reads one number per slot, layer and K or V, and each scale.

        Raises:
            PoisonError: a slot is written in some layers only, or a block is written without a
                scale, or has a scale without being written.
        """
        sample = self.kv[:, :, :, 0, :, 0]  # [layers, 2, blocks, block_size]
        poison = sample == quantized.POISON if self.scales is not None else _is_nan(sample)
        written = ~poison
        everywhere = written.flatten(0, 1).all(0)
        anywhere = written.flatten(0, 1).any(0)
        if not torch.equal(everywhere, anywhere):
            raise PoisonError("a slot is written in some layers only")
        if self.scales is not None:
            scaled = ~self.scales.isnan()
            if not torch.equal(scaled, written.any(-1)[..., None].expand_as(scaled)):
                raise PoisonError("a block is written and has no scale, or has one for nothing")
        return int(everywhere.sum().item())


def scatter(kv: torch.Tensor, inputs: StepInputs, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write keys and values, each [tokens, kv_heads, head_dim], into one layer; any device.

    Rows of padding are skipped.
    """
    blocks, offsets, live = inputs.slot_blocks, inputs.slot_offsets, inputs.live
    if live is not None:
        blocks, offsets, keys, values = blocks[live], offsets[live], keys[live], values[live]
    kv[0][blocks, :, offsets] = keys
    kv[1][blocks, :, offsets] = values


def _is_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.isnan(x.half() if x.dtype == FP8 else x)
