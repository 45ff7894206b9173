"""What vLLM will say of its KV cache: blocks, tokens and maximum concurrency, exactly.

    budget ─► blocks = budget ÷ block bytes        block 0 is the null block: never handed out
              concurrency = blocks ÷ blocks that a request of the maximum length needs
              tokens = ⌊concurrency × maximum length⌋

The tokens are not blocks × block size: a maximum length that is no multiple of the block size
loses the rest of its last block. Follows vLLM 0.32, ``vllm/v1/core/kv_cache_utils.py`` and
``block_pool.py``, for models of one attention kind in all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.geometry import KVGeometry

NULL_BLOCKS = 1
# Its attention on the CPU reads blocks in pieces of so many slots.
CPU_BLOCK_MULTIPLE = 32
# Block sizes of its attention on GPUs (FlashAttention, Triton, FlashInfer) are multiples of this.
GPU_BLOCK_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class VllmCapacity:
    """A KV cache of vLLM's: ``blocks`` of ``block_size`` slots, the null block among them."""

    blocks: int
    block_size: int
    max_length: int

    @property
    def blocks_per_request(self) -> int:
        """Blocks of a request that has grown to the maximum length."""
        return blocks_needed(self.max_length, self.block_size)

    @property
    def max_concurrency(self) -> float:
        """Requests of the maximum length that fit at once, as vLLM counts: the null block too."""
        return self.blocks / self.blocks_per_request

    @property
    def tokens(self) -> int:
        """The "KV cache size" in tokens that vLLM logs."""
        return int(self.max_concurrency * self.max_length)

    @property
    def starts(self) -> bool:
        """Whether vLLM starts: beside the null block, one request of the maximum length fits."""
        return self.blocks - NULL_BLOCKS >= self.blocks_per_request


def vllm_capacity(
    geometry: KVGeometry, budget_bytes: int, block_size: int, max_length: int
) -> VllmCapacity:
    """Capacity of the cache that vLLM makes of ``budget_bytes`` (``kv_cache_memory_bytes``).

    ``geometry`` is of the whole model; with several ranks their budgets and heads add up to it.
    """
    return VllmCapacity(geometry.blocks_in(budget_bytes, block_size), block_size, max_length)


def block_multiple(device: str) -> int:
    """Slots of which every block of vLLM's is a multiple on a device, ``cpu`` or ``cuda``."""
    return GPU_BLOCK_MULTIPLE if device == "cuda" else CPU_BLOCK_MULTIPLE


def vllm_block_size(block_size: int, device: str) -> int:
    """Round up to a block size that vLLM has on a device, ``cpu`` or ``cuda``."""
    multiple = block_multiple(device)
    return blocks_needed(block_size, multiple) * multiple
