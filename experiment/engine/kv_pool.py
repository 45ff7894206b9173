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
from kvsim.step import OpKind, StepPlan


class PoisonError(Exception):
    """Layers disagree on which slots are written: an engine error, never a user's."""


class KVPool:
    """Keys and values of all layers in fixed-size blocks.

    The memory is written once when it is made, so that it is resident and comparable with a
    preallocated contiguous cache.

    Args:
        geometry: layers, KV heads, head size and element size of the model.
        num_blocks: physical blocks.
        block_size: slots in a block.
    """

    def __init__(
        self,
        geometry: KVGeometry,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (
            geometry.layers, 2, num_blocks, geometry.kv_heads, block_size, geometry.head_dim
        )  # fmt: skip
        self.kv = torch.full(shape, float("nan"), dtype=dtype, device=device)
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
        """Carry out the block operations of a plan: freed blocks become unreadable."""
        for op in plan.ops:
            if op.kind is OpKind.FREE:
                self.poison(op.blocks)

    def poison(self, blocks: Iterable[int]) -> None:
        """Fill whole blocks with NaN."""
        index = torch.tensor(list(blocks), dtype=torch.long, device=self.kv.device)
        self.kv.index_fill_(2, index, float("nan"))

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
