"""What vLLM's own model classes keep is what is derived from their published configs.

The configs are the catalogue's.
PAGEDKV_FULL: all that vLLM can build here; otherwise one of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from layouts_campaign import kinds_of
from oracle import Oracle
from sweeps import FULL

from kvsim.sizing.fields import UnsupportedGeometryError
from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.layout import LayoutError, Service, lay_out
from kvsim.sizing.models import MODELS

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
    ({"max_length": 32_768, "caching": False, "async": False, "block_size": 32}, 60),
]  # fmt: skip


@pytest.fixture(scope="module")
def vllm(real_vllm: str) -> Iterator[Oracle]:
    made = Oracle(real_vllm, "vllm_models.py")
    yield made
    made.close()


def ask(config: dict[str, Any], **limits: Any) -> dict[str, Any]:
    given = {"block_size": 16, "max_length": 4096, "batched": 2048, "caching": True}
    return {"config": config, "bytes": 80 << 30, "async": True, **given, **limits}


def ours(asked: dict[str, Any]) -> dict[str, Any]:
    serving = Serving(
        asked["block_size"], kv_bytes=1 if asked.get("kv") == "fp8" else 2,
        tensor_parallel=asked.get("ranks", 1),
        prefix_caching=asked["caching"],
    )  # fmt: skip
    service = Service(asked["max_length"], asked["batched"], 2 if asked["async"] else 1)
    try:
        caches = layer_caches(asked["config"], serving)
        layout = lay_out(caches)
        found = layout.capacity(asked["bytes"], service)
    except LayoutError as error:
        return {"refused": error.code}
    if not found.starts:
        return {"refused": "memory"}
    return {
        "kinds": kinds_of(layout),
        "groups": sorted(len(group.layers) for group in layout.groups),
        "blocks": found.blocks, "tokens": found.tokens, "concurrency": found.max_concurrency,
    }  # fmt: skip


def theirs(vllm: Oracle, asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = vllm.ask(asked)
    for name in ("block_size", "limits"):
        found.pop(name, None)
    if "groups" in found:
        found["groups"] = sorted(map(len, found["groups"]))
    return found


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_of_each_kind_is_laid_out_alike(vllm: Oracle, name: str) -> None:
    for limits in ({}, {"kv": "fp8", "block_size": 64}):
        asked = ask(PUBLISHED[name], **limits)
        assert ours(asked) == theirs(vllm, asked)


def test_long_lengths_without_prefix_caching_and_asynchronous_scheduling(vllm: Oracle) -> None:
    for name in ("gpt-oss-20b", "qwen3-next-80b-a3b"):
        asked = ask(PUBLISHED[name], max_length=32_768, caching=False, **{"async": False})
        assert ours(asked) == theirs(vllm, asked), name


@pytest.mark.parametrize("name", SAMPLE)
def test_a_rank_keeps_its_share(vllm: Oracle, name: str) -> None:
    """Its heads, at least one; latent vectors whole; its channels of a state."""
    # Its experts, of the size that its class takes by default, cannot be shared by four.
    asked = ask(PUBLISHED[name], ranks=2 if name == "deepseek-v2-lite" else 4)
    assert ours(asked) == theirs(vllm, asked)


def test_heads_that_cannot_be_shared_are_refused(vllm: Oracle) -> None:
    asked = ask(PUBLISHED["granite-4.0-h-tiny"], ranks=8)  # 12 attention heads
    with pytest.raises(UnsupportedGeometryError, match="uneven"):
        ours(asked)
    assert "refused" in theirs(vllm, asked)


@pytest.mark.skipif(not FULL, reason="for make test-full")
@pytest.mark.parametrize(("limits", "least"), BUILT, ids=str)
def test_every_published_config_that_vllm_can_build(
    vllm: Oracle, limits: dict[str, Any], least: int
) -> None:
    built = 0
    for name, config in PUBLISHED.items():
        asked = ask(config, **limits)
        found = theirs(vllm, asked)
        if "failed" in found:
            continue
        assert ours(asked) == found, name
        built += 1
    assert built >= least
