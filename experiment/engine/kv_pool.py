"""The tensor behind the block pool.

    kv  [layers, 2, blocks, kv_heads, block_size, head_dim]
                 |
                 0 keys, 1 values

Heads stand outside the slots of a block ("head-major"), so that a kernel which reads a block in
place runs over contiguous memory for one head. Slots that nobody may read hold NaN: what is not
NaN was written, and a stale read shows in the logits at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from experiment.memory.tensors import storage_bytes
from kvsim.geometry import KVGeometry
from kvsim.step import BlockOp, OpKind, StepPlan


class PoisonError(Exception):
    """The tensors contradict the bookkeeping: an engine error, never a user's."""


class KVPool:
    """Keys and values of all layers in fixed-size blocks.

    The memory is written once when it is made, so that it is resident and comparable with a
    preallocated contiguous cache.

    Args:
        geometry: layers, KV heads, head size and element size of the model.
        num_blocks: physical blocks.
        block_size: slots in a block.
        host_blocks: blocks in host memory for requests that are swapped out.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        host_blocks: int = 0,
    ) -> None:
        def blocks(count: int, where: torch.device) -> torch.Tensor:
            shape = (geometry.layers, 2, count, geometry.kv_heads, block_size, geometry.head_dim)
            return torch.full(shape, float("nan"), dtype=dtype, device=where)

        self.kv = blocks(num_blocks, device)
        self.host = blocks(host_blocks, torch.device("cpu")) if host_blocks else None
        self._owners = [0] * num_blocks
        self.num_blocks = num_blocks
        self.block_size = block_size

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the storage."""
        return storage_bytes([self.kv])

    def layer(self, index: int) -> torch.Tensor:
        """One layer: [2, blocks, kv_heads, block_size, head_dim]."""
        return self.kv[index]

    def apply(self, plan: StepPlan) -> None:
        """Carry out the block operations of a plan, in their order.

        Copies and swaps move content; a block that nobody owns any more, and whose content is
        not kept for the prefix cache, becomes unreadable.
        """
        for op in plan.ops:
            self._apply(op)

    def _apply(self, op: BlockOp) -> None:
        if op.kind is OpKind.SWAP_OUT:
            self._to_host(op)
        if op.kind in (OpKind.ALLOCATE, OpKind.SHARE, OpKind.COPY, OpKind.SWAP_IN):
            for block in op.blocks:
                self._owners[block] += 1
        if op.kind is OpKind.COPY:
            self.kv[:, :, list(op.blocks)] = self.kv[:, :, list(op.sources)]
            for block in op.sources:
                self._owners[block] -= 1
        if op.kind in (OpKind.FREE, OpKind.SWAP_OUT):
            for block in op.blocks:
                self._owners[block] -= 1
            gone = [b for b in op.blocks if not self._owners[b] and b not in op.cached]
            self.poison(gone)
        if op.kind is OpKind.EVICT:
            self.poison(op.blocks)
        if op.kind is OpKind.SWAP_IN:
            self._from_host(op)

    def _to_host(self, op: BlockOp) -> None:
        if self.host is None:
            raise PoisonError("blocks are swapped out and there is no host memory for them")
        self.host[:, :, list(op.sources)] = self.kv[:, :, list(op.blocks)].to("cpu")

    def _from_host(self, op: BlockOp) -> None:
        if self.host is None:
            raise PoisonError("blocks are swapped in and there is no host memory for them")
        self.kv[:, :, list(op.blocks)] = self.host[:, :, list(op.sources)].to(self.kv.device)

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill whole blocks with NaN."""
        index = torch.tensor(list(blocks), dtype=torch.long, device=self.kv.device)
        if index.numel():
            self.kv.index_fill_(2, index, float("nan"))

    def poisoned_bytes(self) -> int:
        """Bytes of the slots that hold NaN, by the tensor alone: its shape and what is in it."""
        layers, two, blocks, heads, block_size, dim = self.kv.shape
        unwritten = blocks * block_size - self.written_slots()
        return unwritten * layers * two * heads * dim * self.kv.element_size()

    def written_slots(self) -> int:
        """Count slots that are not NaN, from the tensor alone.

        Looks at one number per slot, layer and K or V.

        Raises:
            PoisonError: a slot is written in one layer and not in another.
        """
        written = ~torch.isnan(self.kv[:, :, :, 0, :, 0])  # [layers, 2, blocks, block_size]
        everywhere = written.flatten(0, 1).all(0)
        anywhere = written.flatten(0, 1).any(0)
        if not torch.equal(everywhere, anywhere):
            raise PoisonError("a slot is written in some layers only")
        return int(everywhere.sum().item())
