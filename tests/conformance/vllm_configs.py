"""A small model's config for the workers here; for vLLM's interpreter."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from experiment.vllm_worker.configs import model_config

_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 32000, "torch_dtype": "bfloat16",
}  # fmt: skip


@contextlib.contextmanager
def llama(max_length: int) -> Iterator[Any]:
    """The config of a small model, whose weights there are none of."""
    with tempfile.TemporaryDirectory() as place:
        yield model_config(place, {**_LLAMA, "max_position_embeddings": max_length}, max_length)
