"""Tokens and concurrency as vLLM 0.32 printed them."""

from __future__ import annotations

import pytest

from kvsim.accounting.ledger import Ledger, PoolShape, SlotState
from kvsim.sizing.geometry import KVGeometry
from kvsim.sizing.vllm_capacity import vllm_block_size, vllm_capacity

GPT2_FP32 = KVGeometry(12, 12, 64, 4)


@pytest.mark.parametrize(
    ("blocks", "block_size", "max_length", "tokens", "concurrency"),
    [
        (32_958, 16, 512, "527,328", "1029.94"),  # GPT-2 in bf16, 18.10 GiB
        (GPT2_FP32.blocks_in(2 << 30, 128), 128, 512, "29,056", "56.75"),
        (273_184 // 16, 16, 32_768, "273,184", "8.34"),  # 36 layers, 2 KV heads of 128: 9.38 GiB
        (64, 32, 500, "2,000", "4.00"),  # not blocks times block size
        (64, 32, 512, "2,048", "4.00"),
    ],
)
def test_what_vllm_printed(
    blocks: int, block_size: int, max_length: int, tokens: str, concurrency: str
) -> None:
    found = vllm_capacity(blocks, block_size, max_length)
    assert (f"{found.tokens:,}", f"{found.max_concurrency:.2f}") == (tokens, concurrency)


@pytest.mark.parametrize(("blocks", "starts"), [(16, False), (17, True)])
def test_the_null_block_must_fit_beside_one_request(blocks: int, starts: bool) -> None:
    """Seen: 37,748,736 bytes are 16 blocks of 32 slots of GPT-2, and 512 tokens are refused."""
    budget = blocks * 32 * GPT2_FP32.bytes_per_token
    assert vllm_capacity(GPT2_FP32.blocks_in(budget, 32), 32, 512).starts is starts


@pytest.mark.parametrize(
    ("device", "size", "rounded"),
    [
        ("cpu", 1, 32), ("cpu", 16, 32), ("cpu", 32, 32), ("cpu", 33, 64), ("cpu", 128, 128),
        ("cuda", 1, 16), ("cuda", 8, 16), ("cuda", 16, 16), ("cuda", 17, 32), ("cuda", 48, 48),
    ],
)  # fmt: skip
def test_block_sizes_of_a_device(device: str, size: int, rounded: int) -> None:
    assert vllm_block_size(size, device) == rounded


def test_blocks_of_the_engine_are_neither_free_nor_handed_out() -> None:
    counts = Ledger(PoolShape(4, 8, 1, watermark_blocks=1, engine_blocks=1)).counts()
    assert (counts.reserved, counts.allocated) == (32, 0)
    assert {state: counts[state] for state in SlotState if counts[state]} == {
        SlotState.ENGINE: 8,
        SlotState.WATERMARK: 8,
        SlotState.FREE: 16,
    }
