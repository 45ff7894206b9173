"""Asks vLLM's own model classes what their layers keep; runs in vLLM's interpreter.

    python vllm_models.py < asks.jsonl > answers.jsonl

An ask has a published config, limits and bytes; the model is built on torch's meta device, without
weights. The answer is that of vllm_layouts.py, and the block size. It is pinned to what CUDA with
FlashAttention or FlashMLA takes: kernel blocks of 16, of 64 for latent attention.

Nothing here imports the project.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import torch
import vllm_layouts
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed import get_tp_group, init_distributed_environment, initialize_model_parallel
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm_configs import layout_config, model_config


def answer(ask: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Build ``ask``: config, block_size, bytes, max_length, batched, async, caching, ranks, kv.

    ``limits`` are further (max_length, bytes) of the same model, answered under that name.
    """
    ranks = ask.get("ranks", 1)
    get_tp_group().world_size = ranks  # layers ask it how many share them, and send nothing
    model = model_config(place, ask["config"], ask["max_length"])
    config = layout_config(model, ask)
    cache = config.cache_config
    config.parallel_config.tensor_parallel_size = ranks
    try:
        model.verify_with_parallel_config(config.parallel_config)
    except ValueError as error:
        said = {"refused": str(error)[:200]}
        return {**said, "limits": [said] * len(ask.get("limits", ()))}
    # Afterwards: the platform for CPUs takes other blocks, and no fp8.
    cache.block_size = ask["block_size"]
    cache.cache_dtype = ask.get("kv", "auto")
    kinds = getattr(model.hf_text_config, "layer_types", None)
    if kinds is None or all(kind == "sliding_attention" for kind in kinds):
        cache.sliding_window = model.get_sliding_window()  # as EngineArgs: one for all layers
    # The CPU build alone keeps states in float32 when nothing is said.
    said = getattr(model.hf_text_config, "mamba_ssm_dtype", None)
    said = said or getattr(model.hf_text_config, "mamba_ssm_cache_dtype", None)
    if model.hf_text_config.model_type == "nemotron_h":
        said = said or "float32"
    cache.mamba_ssm_cache_dtype = said or "auto"
    cache.user_specified_block_size = True
    kernel = 64 if model.use_mla else 16
    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(
        lambda kv_cache_spec=None: [MultipleOf(kernel)]
    )
    with set_current_vllm_config(config):
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            initialize_model(vllm_config=config)
        Platform.update_block_size_for_backend.__func__(type(current_platform), config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        found = {
            name: layer.get_kv_cache_spec(config)
            for name, layer in layers.items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
        }
        specs = {name: spec for name, spec in found.items() if spec is not None}
        made = vllm_layouts.found(config, [specs], ask["bytes"])
        further = []
        for length, memory in ask.get("limits", ()):
            model.max_model_len = config.scheduler_config.max_model_len = length
            further.append(vllm_layouts.found(config, [specs], memory))
        return {**made, "block_size": cache.block_size, "limits": further}


def share_no_experts() -> None:
    """Leave experts whole: they keep nothing, and their sizes are not in the configs here."""
    make = FusedMoEParallelConfig.make
    FusedMoEParallelConfig.make = staticmethod(lambda tp_size_, **rest: make(tp_size_=1, **rest))


def main() -> None:
    """Answer each ask of the standard input."""
    share_no_experts()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as place, set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        initialize_model_parallel(1, 1)
        for line in sys.stdin:
            try:
                said = answer(json.loads(line), place)
            except Exception as error:
                said = {"failed": f"{type(error).__name__}: {error}"[:400]}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
