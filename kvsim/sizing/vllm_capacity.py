"""The KV cache capacity that vLLM reports: blocks, tokens and maximum concurrency.

    budget ─► blocks = budget ÷ block bytes        block 0 is the null block, never allocated
              concurrency = blocks ÷ blocks of a request of the maximum length
              tokens = ⌊concurrency × maximum length⌋

``tokens`` is less than blocks × block size if the maximum length is no multiple of the block size.
Follows vLLM 0.32, ``vllm/v1/core/kv_cache_utils.py`` and ``block_pool.py``;
for layers of different kinds see :mod:`kvsim.sizing.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.core.blocks import blocks_needed

NULL_BLOCKS = 1
# vLLM's CPU attention needs a multiple of this block size.
CPU_BLOCK_MULTIPLE = 32
# vLLM's GPU attention (FlashAttention, Triton, FlashInfer) needs a multiple of this block size.
GPU_BLOCK_MULTIPLE = 16


@dataclass(frozen=True, slots=True)
class VllmCapacity:
    """A KV cache of vLLM.

    Attributes:
        blocks: of the pool, the null block included.
        request_blocks: of a request of the maximum length.
    """

    blocks: int
    request_blocks: int
    max_length: int

    @property
    def max_concurrency(self) -> float:
        """Concurrent requests of the maximum length; counts the null block, as vLLM does."""
        return self.blocks / self.request_blocks

    @property
    def tokens(self) -> int:
        """The "KV cache size" in tokens that vLLM logs."""
        return int(self.max_concurrency * self.max_length)

    @property
    def starts(self) -> bool:
        """Whether vLLM starts: one request of the maximum length and the null block fit."""
        return self.blocks - NULL_BLOCKS >= self.request_blocks


def vllm_capacity(blocks: int, block_size: int, max_length: int) -> VllmCapacity:
    """Return the capacity of a model whose layers all keep every token."""
    return VllmCapacity(blocks, blocks_needed(max_length, block_size), max_length)


def block_multiple(device: str) -> int:
    """Return the factor of vLLM's block sizes on ``device``, ``cpu`` or ``cuda``."""
    return GPU_BLOCK_MULTIPLE if device == "cuda" else CPU_BLOCK_MULTIPLE


def vllm_block_size(block_size: int, device: str) -> int:
    """Round up to a block size that vLLM supports on ``device``, ``cpu`` or ``cuda``."""
    multiple = block_multiple(device)
    return blocks_needed(block_size, multiple) * multiple
