"""vLLM's configs as the workers here need them; for vLLM's interpreter.

Nothing here imports the project.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip


@contextlib.contextmanager
def llama(max_length: int) -> Iterator[ModelConfig]:
    """The config of a small model, whose weights there are none of."""
    with tempfile.TemporaryDirectory() as place:
        yield model_config(place, {**_LLAMA, "max_position_embeddings": max_length}, max_length)


def model_config(place: str, config: Mapping[str, Any], max_length: int) -> ModelConfig:
    """Write ``config`` to the directory ``place`` and read it as vLLM does."""
    (pathlib.Path(place) / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ModelConfig(
        model=place, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=max_length,
        enforce_eager=True,
    )  # fmt: skip


def layout_config(model: ModelConfig, ask: Mapping[str, Any]) -> VllmConfig:
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
