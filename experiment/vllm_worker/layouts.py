"""The KV cache of a model by vLLM's own functions: groups, blocks, tokens and concurrency.

    config ─► vLLM's model class on torch's meta device ─► what each layer keeps ─► groups, blocks

Nothing is loaded and no GPU is used. What depends on the device is pinned to CUDA with
FlashAttention or FlashMLA: kernel blocks of 16, of 64 for latent attention. For vLLM 0.32 and 0.33.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed.parallel_state import (
    get_tp_group,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.fused_moe.config import FusedMoEParallelConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

from experiment.vllm_worker.configs import Ask, layout_config, model_config

try:  # where it is since 0.33
    planning: Any = import_module("vllm.v1.core.kv_cache_planning")
except ImportError:
    planning = None

_UTILS: Any = import_module("vllm.v1.core.kv_cache_utils")
KINDS = {
    "FullAttentionSpec": "full", "MLAAttentionSpec": "latent", "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunked", "MambaSpec": "state",
}  # fmt: skip
_MOST_REASON, _MOST_ERROR = 200, 400  # characters


class _OnCuda(VllmConfig):  # type: ignore[misc]
    """Its defaults there, where there is Triton."""

    use_v2_model_runner = property(lambda _: True)


@contextmanager
def one_process() -> Iterator[None]:
    """Let vLLM build models in this process, which stands for any rank.

    Experts stay whole: they keep nothing, and configs of the catalogue lack their sizes.
    """
    make = FusedMoEParallelConfig.make
    FusedMoEParallelConfig.make = staticmethod(lambda **given: make(**{**given, "tp_size_": 1}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield


def lay_out_model(ask: Ask, place: str) -> dict[str, Any]:
    """Build a model and lay out its cache.

    Args:
        ask: config, block_size (tokens), bytes (of one rank), max_length (tokens), batched (tokens
            of a step), async, caching; optional: ranks (tensor parallel), kv (cache dtype), dtype,
            and limits: further (max_length, bytes) of the same model, answered under that name.
        place: an existing directory for the config.

    Returns:
        As :func:`lay_out_layers`, and the block size; ``failed``: why vLLM cannot build it.
    """
    try:
        return _lay_out_model(ask, place)
    except MemoryError:
        raise
    except Exception as error:  # constructors of models may raise anything
        return {"failed": f"{type(error).__name__}: {error}"[:_MOST_ERROR]}


def _lay_out_model(ask: Ask, place: str) -> dict[str, Any]:
    ranks, dtype = ask.get("ranks", 1), ask.get("dtype", "bfloat16")
    get_tp_group().world_size = ranks  # layers ask it how many share them, and send nothing
    model = model_config(place, ask["config"], ask["max_length"], dtype)
    config = layout_config(model, ask)
    cache = config.cache_config
    config.parallel_config.tensor_parallel_size = ranks
    try:
        model.verify_with_parallel_config(config.parallel_config)
    except ValueError as error:
        said = {"refused": str(error)[:_MOST_REASON]}
        return {**said, "limits": [said] * len(ask.get("limits", ()))}
    # Afterwards: the platform for CPUs takes other blocks, and no fp8.
    cache.block_size = ask["block_size"]
    cache.cache_dtype = ask.get("kv", "auto")
    kinds = getattr(model.hf_text_config, "layer_types", None)
    if kinds is None or all(kind == "sliding_attention" for kind in kinds):
        cache.sliding_window = model.get_sliding_window()  # as EngineArgs: one for all layers
    cache.mamba_ssm_cache_dtype = _state_dtype(model.hf_text_config)
    cache.user_specified_block_size = True
    kernel = 64 if model.use_mla else 16
    CPUAttentionBackend.get_supported_kernel_block_sizes = staticmethod(
        lambda kv_cache_spec=None: [MultipleOf(kernel)]  # noqa: ARG005
    )
    with set_current_vllm_config(config):
        torch.set_default_dtype(getattr(torch, dtype))
        with torch.device("meta"):
            initialize_model(config)
        Platform.update_block_size_for_backend.__func__(type(current_platform), config)
        specs = _specs(config)
        made = lay_out_layers(config, [specs], ask["bytes"])
        further = []
        for length, memory in ask.get("limits", ()):
            model.max_model_len = config.scheduler_config.max_model_len = length
            further.append(lay_out_layers(config, [specs], memory))
    return {**made, "block_size": cache.block_size, "limits": further}


def _state_dtype(config: Any) -> str:
    """The dtype of recurrent states on CUDA; the CPU build alone has float32 by default."""
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if named := getattr(config, name, None):
            return str(named)
    return "float32" if config.model_type == "nemotron_h" else "auto"


def _specs(config: Any) -> dict[str, Any]:
    """What each layer keeps; layers that use another one's cache keep nothing."""
    layers = get_layers_from_vllm_config(config, AttentionLayerBase)
    found = {
        name: layer.get_kv_cache_spec(config)
        for name, layer in layers.items()
        if not getattr(layer, "kv_sharing_target_layer_name", None)
    }
    return {name: spec for name, spec in found.items() if spec is not None}


def lay_out_layers(config: Any, stages: Sequence[Mapping[str, Any]], memory: int) -> dict[str, Any]:
    """Lay out specifications of layers.

    Args:
        stages: layers of each pipeline stage; groups are those of the first.
        memory: bytes of one rank.

    Returns:
        ``groups``: the places of their layers; ``kinds``: [kind, block size, layers]; ``blocks``,
        ``tokens``, ``concurrency``. Or ``refused``: why vLLM does not start.
    """
    config.__class__ = _OnCuda  # afterwards: the platform for CPUs cannot run it
    places = {name: place for place, name in enumerate(n for stage in stages for n in stage)}
    memories = [memory] * len(stages)
    try:
        if planning:
            groups = planning.get_global_kv_cache_groups(config, stages)
            made, *_ = planning.get_kv_cache_configs(config, stages, memories, groups)
        else:
            made, *_ = _UTILS.get_kv_cache_configs(config, stages, memories)
    except (ValueError, NotImplementedError) as error:
        return {"refused": str(error)[:_MOST_REASON]}
    tokens, concurrency = get_kv_cache_capacity(config, made)
    kinds: Counter[tuple[str, int]] = Counter()
    for group in made.kv_cache_groups:
        inner = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        for each in (inner.get(name, group.kv_cache_spec) for name in group.layer_names):
            kind = KINDS[type(each).__name__]
            kinds[kind, 0 if kind == "state" else each.block_size] += 1
    return {
        "kinds": sorted([kind, size, count] for (kind, size), count in kinds.items()),
        "groups": [[places[name] for name in group.layer_names] for group in made.kv_cache_groups],
        "blocks": made.num_blocks, "tokens": tokens, "concurrency": concurrency,
    }  # fmt: skip
