"""What vLLM's own model classes keep is what is derived from their published configs.

The configs are the catalogue's.
PAGEDKV_FULL: all that vLLM can build here; otherwise one of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from layouts_campaign import our_answers, plain
from oracle import Oracle
from sweeps import FULL

from kvsim.sizing.models import MODELS

MEMORY = 80 << 30
PUBLISHED = {name: dict(facts.config) for name, facts in MODELS.items()}
# Full; alternating windows; latent; delta net; Mamba 2 beside and in turn with attention; Mamba 1;
# short convolutions.
SAMPLE = (
    "llama-3.1-8b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3-next-80b-a3b", "falcon-h1-7b",
    "granite-4.0-h-tiny", "jamba-1.5-mini", "lfm2-8b-a1b",
)  # fmt: skip
# Least number of configs built. The others need a GPU, a newer Transformers, or fields beyond the
# cache's, and eight ranks often do not divide the heads.
BUILT: list[tuple[dict[str, Any], int]] = [
    ({}, 71), ({"ranks": 2}, 71), ({"ranks": 8}, 61), ({"kv": "fp8", "block_size": 64}, 71),
    ({"length": 32_768, "caching": False, "async": False, "block_size": 32}, 60),
]  # fmt: skip


@pytest.fixture(scope="module")
def vllm(real_vllm: str) -> Iterator[Oracle]:
    made = Oracle(real_vllm, "vllm_models.py")
    yield made
    made.close()


def ask(config: dict[str, Any], *, length: int = 4096, **given: Any) -> dict[str, Any]:
    return {
        "config": config, "max_length": length, "bytes": MEMORY, "limits": [(length, MEMORY)],
        "block_size": 16, "batched": 2048, "caching": True, "async": True, **given,
    }  # fmt: skip


def answers(vllm: Oracle, asked: dict[str, Any]) -> tuple[Any, Any]:
    """Ours and vLLM's, which is None where it cannot build the model here."""
    theirs = vllm.ask(asked)
    built = "failed" not in theirs
    return next(our_answers(asked)), plain(theirs["limits"][0]) if built else None


LONG = {"length": 32_768, "caching": False, "async": False}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_of_each_kind_is_laid_out_alike(vllm: Oracle, name: str) -> None:
    """A rank keeps its heads, at least one; latent vectors whole; its channels of a state."""
    # Experts of the size that this class takes by default cannot be shared by four.
    ranks = 2 if name == "deepseek-v2-lite" else 4
    long = [LONG] if name in ("gpt-oss-20b", "qwen3-next-80b-a3b") else []
    for limits in ({}, {"kv": "fp8", "block_size": 64}, {"ranks": ranks}, *long):
        mine, theirs = answers(vllm, ask(PUBLISHED[name], **limits))
        assert mine == theirs, limits
        assert "refused" not in mine or limits.keys() & {"ranks", "length"}


def test_heads_that_cannot_be_shared_are_refused(vllm: Oracle) -> None:
    asked = ask(PUBLISHED["granite-4.0-h-tiny"], ranks=8)  # 12 attention heads
    assert answers(vllm, asked) == ({"refused": True}, {"refused": True})


@pytest.mark.skipif(not FULL, reason="for make test-full")
@pytest.mark.parametrize(("limits", "least"), BUILT, ids=str)
def test_every_published_config_that_vllm_can_build(
    vllm: Oracle, limits: dict[str, Any], least: int
) -> None:
    built = 0
    for name, config in PUBLISHED.items():
        mine, theirs = answers(vllm, ask(config, **limits))
        if theirs is not None:
            assert mine == theirs, name
            built += 1
    assert built >= least
