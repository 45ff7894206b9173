"""Asks vLLM's own functions for the layout of made-up layers; runs in vLLM's interpreter.

    python vllm_layouts.py < asks.jsonl > answers.jsonl

An ask has layers, limits and bytes, see :func:`answer`; its answer is a line: the indices of the
layers of each group, blocks, tokens and concurrency, or what vLLM said when it refused.

Nothing here imports the project.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import torch
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed.utils import get_pp_indices
from vllm.v1 import kv_cache_interface as kv
from vllm.v1.core import kv_cache_utils as utils
from vllm_configs import layout_config, llama

try:  # where it is since 0.33
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:
    planning = None

MAX_LENGTH = 1 << 20
KINDS = {
    "FullAttentionSpec": "full", "MLAAttentionSpec": "latent", "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunked", "MambaSpec": "state",
}  # fmt: skip


class _OnCuda(VllmConfig):
    """Its defaults there, where there is Triton."""

    use_v2_model_runner = property(lambda _: True)


def answer(model: ModelConfig, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Lay out ``ask``: layers, block_size, bytes, max_length, batched, async, caching, stages.

    An ask of ``partition``, (layers, stages), is the layers of each stage.
    """
    if "partition" in ask:
        layers, stages = ask["partition"]
        return {"stages": [get_pp_indices(layers, stage, stages) for stage in range(stages)]}
    model.max_model_len = ask["max_length"]
    config = layout_config(model, ask)
    config.cache_config.mamba_cache_mode = "align" if ask["caching"] else "none"
    specs = {f"{i}": spec(layer, ask["block_size"]) for i, layer in enumerate(ask["layers"])}
    stages = ask.get("stages", [[*range(len(ask["layers"]))]])
    config.parallel_config.pipeline_parallel_size = len(stages)
    return found(config, [{f"{i}": specs[f"{i}"] for i in each} for each in stages], ask["bytes"])


def found(
    config: VllmConfig, stages: list[dict[str, kv.KVCacheSpec]], memory: int
) -> dict[str, Any]:
    """Return groups by the places of their layers, blocks, tokens and concurrency.

    Args:
        stages: layers of each pipeline stage; groups are those of the first.
    """
    names = (name for stage in stages for name in stage)
    config.__class__ = _OnCuda  # afterwards: the platform for CPUs cannot run it
    places = {name: place for place, name in enumerate(names)}
    memories = [memory] * len(stages)
    try:
        if planning:
            groups = planning.get_global_kv_cache_groups(config, stages)
            made, *_ = planning.get_kv_cache_configs(config, stages, memories, groups)
        else:
            made, *_ = utils.get_kv_cache_configs(config, stages, memories)
    except (ValueError, NotImplementedError) as error:
        return {"refused": str(error)[:200]}
    tokens, concurrency = utils.get_kv_cache_capacity(config, made)
    kinds: Counter[tuple[str, int]] = Counter()
    for group in made.kv_cache_groups:
        inner = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        specs = [inner.get(name, group.kv_cache_spec) for name in group.layer_names]
        for each in specs:
            kind = KINDS[type(each).__name__]
            kinds[kind, 0 if kind == "state" else each.block_size] += 1
    return {
        "kinds": sorted([kind, size, count] for (kind, size), count in kinds.items()),
        "groups": [[places[name] for name in group.layer_names] for group in made.kv_cache_groups],
        "blocks": made.num_blocks, "tokens": tokens, "concurrency": concurrency,
    }  # fmt: skip


def spec(layer: Mapping[str, Any], block_size: int) -> kv.KVCacheSpec:
    """Return vLLM's own specification of a layer."""
    block_size = layer.get("block_size", block_size)
    if layer["kind"] == "state":
        return kv.MambaSpec(
            block_size=block_size, shapes=((layer["bytes"],),), dtypes=(torch.uint8,),
            mamba_cache_mode=layer["mode"], page_size_padded=layer.get("padded"),
        )  # fmt: skip
    common = {
        "block_size": block_size, "num_kv_heads": layer["heads"], "head_size": layer["head"],
        "dtype": getattr(torch, layer["dtype"]),
    }  # fmt: skip
    if layer["kind"] == "full":
        return kv.FullAttentionSpec(**common, head_size_v=layer.get("value"))
    if layer["kind"] == "window":
        value = {"head_size_v": layer["value"]} if "value" in layer else {}
        return kv.SlidingWindowSpec(**common, **value, sliding_window=layer["span"])
    if layer["kind"] == "chunked":
        return kv.ChunkedLocalAttentionSpec(**common, attention_chunk_size=layer["span"])
    return kv.MLAAttentionSpec(**common)


def main() -> None:
    """Answer each ask of the standard input."""
    with llama(MAX_LENGTH) as model:
        for line in sys.stdin:
            print(json.dumps(answer(model, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
