"""Asks vLLM's own functions for the layout of layers; runs in vLLM's interpreter.

    python vllm_layouts.py < asks.jsonl > answers.jsonl

An ask has made-up layers, limits and bytes, see :func:`answer`; its answer is a line: the indices
of the layers of each group, blocks, tokens and concurrency, or what vLLM said when it refused. An
ask with the config of a model is answered by :func:`experiment.vllm_worker.layouts.lay_out_model`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import torch
from vllm.config import ModelConfig
from vllm.distributed.utils import get_pp_indices
from vllm.v1 import kv_cache_interface as kv
from vllm_configs import llama

from experiment.vllm_worker.configs import layout_config
from experiment.vllm_worker.layouts import lay_out_layers, lay_out_model, one_process

MAX_LENGTH = 1 << 20


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
    found = [{f"{i}": specs[f"{i}"] for i in each} for each in stages]
    return lay_out_layers(config, found, ask["bytes"])


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
    with llama(MAX_LENGTH) as model, tempfile.TemporaryDirectory() as place, one_process():
        for line in sys.stdin:
            ask = json.loads(line)
            found = lay_out_model(ask, place) if "config" in ask else answer(model, ask)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # unloading vLLM takes seconds
