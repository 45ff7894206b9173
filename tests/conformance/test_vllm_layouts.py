"""Groups, blocks, tokens and concurrency are those that vLLM finds.

Of made-up layers, and of the catalogue's models as vLLM's own classes build them from their
published configs: one of each kind, and for `make test-full` all that vLLM can build here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import lcm
from typing import Any

import pytest
from layouts_campaign import kinds_of, our_answers, plain
from oracle import Oracle
from sweeps import full

from kvsim.core.blocks import blocks_needed
from kvsim.sizing.layers import pipeline_stages
from kvsim.sizing.layout import LayerCache, LayoutError, Service, lay_out
from kvsim.sizing.models import MODELS

ASKS = 300
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
    made = Oracle(real_vllm, "vllm_layouts.py")
    yield made
    made.close()


def random_ask(seed: int) -> dict[str, Any]:
    """Up to three kinds of layers, in a pattern or by chance."""
    draw = random.Random(seed)
    caching = draw.random() < 0.5
    kinds = [_layer(draw, caching) for _ in range(draw.choice([2, 2, 3]))]
    every = draw.choice([0, 2, 4, 6])
    layers = []
    for place in range(draw.randint(2, 40)):
        if every:
            layers.append(kinds[0] if (place + 1) % every == 0 else kinds[-1 - place % 2])
        else:
            layers.append(draw.choice(kinds))
    return {
        "layers": layers, "block_size": draw.choice([16, 32, 64]),
        "bytes": draw.choice([1 << 28, 1 << 30, 20 << 30]),
        "max_length": draw.choice([512, 2048, 8192, 32768, 131072]),
        "batched": draw.choice([512, 2048, 8192]), "async": draw.random() < 0.5,
        "caching": caching,
    }  # fmt: skip


def _layer(draw: random.Random, caching: bool) -> dict[str, Any]:
    kind = draw.choice(["full", "full", "window", "window", "chunked", "latent", "state"])
    if kind == "state":
        size = draw.choice([4096, 65_536, 100_000, 1 << 20])
        return {"kind": kind, "bytes": size, "mode": "align" if caching else "none"}
    heads, head = draw.choice([1, 2, 4, 8]), draw.choice([64, 128, 256])
    span = draw.choice([128, 512, 1024, 4096])
    if kind == "latent":
        heads, head = 1, 576
    return {"kind": kind, "heads": heads, "head": head, "dtype": "bfloat16", "span": span}


def ours(ask: dict[str, Any]) -> dict[str, Any]:
    layers = [_cache(layer, ask["block_size"]) for layer in ask["layers"]]
    stages = ask.get("stages", ())
    batches = max(1, len(stages)) + ask["async"]
    service = Service(ask["max_length"], ask["batched"], batches)
    try:
        layout = lay_out(layers, stages)
        found = layout.capacity(ask["bytes"], service)
    except LayoutError as error:
        return {"refused": error.code}
    if not found.starts:
        return {"refused": "memory"}
    return {
        "kinds": kinds_of(layout),
        "groups": [list(group.layers) for group in layout.groups],
        "blocks": found.blocks, "tokens": found.tokens, "concurrency": found.max_concurrency,
    }  # fmt: skip


def _cache(layer: dict[str, Any], block_size: int) -> LayerCache:
    kind = layer["kind"]
    if kind == "state":
        states = 2 if layer["mode"] == "align" else 1
        return LayerCache(kind, layer["bytes"], block_size, states=states)
    tensors = 1 if kind == "latent" else 2
    token_bytes = tensors * 2 * layer["heads"] * layer["head"]
    span = layer["span"] if kind in ("window", "chunked") else 0
    return LayerCache(kind, token_bytes, block_size, span, (layer["heads"], layer["head"]))


def test_random_layers_are_laid_out_alike(vllm: Oracle) -> None:
    refused = groups = 0
    for seed in range(ASKS):
        ask = random_ask(seed)
        theirs, mine = vllm.ask(ask), ours(ask)
        if "refused" in theirs:
            assert "refused" in mine, seed
            refused += 1
            continue
        assert mine == theirs, seed
        groups += len(theirs["groups"]) > 1
    assert groups > ASKS // 3
    assert refused > ASKS // 20


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_layers_are_gathered_alike(vllm: Oracle, name: str) -> None:
    """Also of models that vLLM cannot build without a GPU: what each layer keeps is ours here."""
    model = MODELS[name]
    caches = model.caches(block_size=model.block_size)
    if any(cache.states > 2 for cache in caches):
        pytest.skip("vLLM's classes say how many states Mamba 2 keeps")
    ask = {
        "layers": [_spec(cache) for cache in caches], "block_size": model.block_size,
        "bytes": 20 << 30, "max_length": 8192, "batched": 2048, "async": True, "caching": True,
    }  # fmt: skip
    layout = lay_out(caches)
    found = layout.capacity(20 << 30, Service(8192, 2048))
    theirs = vllm.ask(ask)
    if "refused" in theirs:
        assert not found.starts
        return
    assert sorted(map(len, theirs["groups"])) == sorted(len(each.layers) for each in layout.groups)
    assert theirs["kinds"] == kinds_of(layout)
    assert (theirs["blocks"], theirs["tokens"]) == (found.blocks, found.tokens)


def _spec(cache: LayerCache) -> dict[str, Any]:
    """A layer as vLLM's worker takes it."""
    if cache.kind == "state":
        about = {"bytes": cache.token_bytes, "mode": "align", "padded": cache.page_padded}
    elif cache.kind == "latent":
        wide = cache.shape[0] == 0  # an indexer, in bytes
        about = {"heads": 1, "head": cache.shape[1], "dtype": "uint8" if wide else "bfloat16"}
    else:
        heads, head, value = cache.shape
        about = {"heads": heads, "head": head, "value": value, "dtype": "bfloat16"}
    return {"kind": cache.kind, "span": cache.span, "block_size": cache.block_size, **about}


def test_stages_have_the_layers_that_vllm_gives_them(vllm: Oracle) -> None:
    for layers in (5, 24, 61, 62):
        for stages in (1, 2, 3, 4, 5):
            theirs = vllm.ask({"partition": [layers, stages]})["stages"]
            mine = pipeline_stages({"num_hidden_layers": layers}, stages)
            assert [[each[0], each[-1] + 1] for each in mine] == theirs


def test_blocks_of_pipeline_stages_are_counted_alike(vllm: Oracle) -> None:
    compared = 0
    for seed in range(ASKS // 2):
        ask = random_ask(seed)
        count = min(len(ask["layers"]), 2 + seed % 3)
        ask["stages"] = pipeline_stages({"num_hidden_layers": len(ask["layers"])}, count)
        theirs, mine = vllm.ask(ask), ours(ask)
        if "refused" in theirs:
            assert "refused" in mine, seed
            continue
        figures = ("blocks", "tokens", "concurrency")
        assert [mine[name] for name in figures] == [theirs[name] for name in figures], seed
        compared += 1
    assert compared > ASKS // 4


@pytest.mark.parametrize(
    ("asynchronous", "tokens", "concurrency"), [(True, 62_557, 1.9091), (False, 97_435, 2.9735)]
)
def test_asynchronous_scheduling_takes_a_third_of_what_gemma_3_27b_holds(
    vllm: Oracle, asynchronous: bool, tokens: int, concurrency: float
) -> None:
    full = {"kind": "full", "heads": 16, "head": 128, "dtype": "bfloat16", "span": 0}
    window = full | {"kind": "window", "span": 1024}
    ask = {
        "layers": [full if (place + 1) % 6 == 0 else window for place in range(62)],
        "block_size": 16, "bytes": 20 << 30, "max_length": 32_768, "batched": 8192,
        "async": asynchronous, "caching": True,
    }  # fmt: skip
    mine = ours(ask)
    assert mine == vllm.ask(ask)
    assert (mine["tokens"], round(mine["concurrency"], 4)) == (tokens, concurrency)
    sizes = sorted(len(group) for group in mine["groups"])
    assert sizes == [8, 8, 9, 9, 9, 9, 10]


def test_two_parts_are_what_a_long_request_takes() -> None:
    """A fixed part and a part for each token give the blocks that vLLM counts, block by block."""
    for seed in range(100):
        asked = random_ask(seed)
        service = Service(asked["max_length"], asked["batched"])
        try:
            layout = lay_out([_cache(layer, asked["block_size"]) for layer in asked["layers"]])
        except LayoutError:
            continue
        caches = [group.cache[0] for group in layout.groups]
        multiple = lcm(*(cache.block_size for cache in caches))
        kept = [cache.span + service.in_flight for cache in caches if cache.span]
        for blocks in (1, 7, 1000):
            tokens = (blocks_needed(max(kept, default=0), multiple) + blocks) * multiple
            taken = layout.request_blocks(service, tokens) * layout.block_bytes
            growing = [
                tokens // each.block_size for each in caches if each.kind in ("full", "latent")
            ]
            assert layout.fixed_bytes(service) + sum(growing) * layout.block_bytes == taken, seed


def ask_for(config: dict[str, Any], *, length: int = 4096, **given: Any) -> dict[str, Any]:
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
        mine, theirs = answers(vllm, ask_for(PUBLISHED[name], **limits))
        assert mine == theirs, limits
        assert "refused" not in mine or limits.keys() & {"ranks", "length"}


def test_heads_that_cannot_be_shared_are_refused(vllm: Oracle) -> None:
    asked = ask_for(PUBLISHED["granite-4.0-h-tiny"], ranks=8)  # 12 attention heads
    assert answers(vllm, asked) == ({"refused": True}, {"refused": True})


@full
@pytest.mark.parametrize(("limits", "least"), BUILT, ids=str)
def test_every_published_config_that_vllm_can_build(
    vllm: Oracle, limits: dict[str, Any], least: int
) -> None:
    built = 0
    for name, config in PUBLISHED.items():
        mine, theirs = answers(vllm, ask_for(config, **limits))
        if theirs is not None:
            assert mine == theirs, name
            built += 1
    assert built >= least
