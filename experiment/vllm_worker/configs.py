"""vLLM's configs of a model and its KV cache, without weights and without a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

Ask = Mapping[str, Any]


def model_config(
    place: str, config: Mapping[str, Any], max_length: int, dtype: str = "bfloat16"
) -> Any:
    """Write ``config`` to the directory ``place`` and read it as vLLM does."""
    (Path(place) / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelConfig(
        model=place, skip_tokenizer_init=True, dtype=dtype, max_model_len=max_length,
        enforce_eager=True, trust_remote_code=False,
    )  # fmt: skip


def layout_config(model: Any, ask: Ask) -> Any:
    """What a layout depends on: max_length, batched, async, block_size, caching of ``ask``."""
    cache = CacheConfig(block_size=ask["block_size"], enable_prefix_caching=ask["caching"])
    scheduling = SchedulerConfig(
        max_model_len=ask["max_length"], max_num_batched_tokens=ask["batched"], max_num_seqs=1,
        is_encoder_decoder=False, async_scheduling=False,
    )  # fmt: skip
    config = VllmConfig(model_config=model, cache_config=cache, scheduler_config=scheduling)
    scheduling.async_scheduling = ask["async"]  # afterwards: the platform for CPUs forbids it
    cache.kv_cache_layout = "NHD"
    return config
