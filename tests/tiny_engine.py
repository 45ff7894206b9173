"""Our engine on the tiny models of ``gpucheck``, and what it must generate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from experiment.config.kv_dtype import cache_geometry
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.quantized import KV_DTYPES
from experiment.gpucheck.tiny_models import CONFIGS, POSITIONS, VOCABULARY, plain_tokens, tiny
from kvsim.core.scheduler import SchedulerConfig
from kvsim.sizing.geometry import KVGeometry, geometry_from_config


def geometry(family: str) -> KVGeometry:
    """Shape of the family's KV cache in fp32."""
    return geometry_from_config(CONFIGS[family]().to_dict(), 4)


def make_engine(
    family: str, blocks: int, block_size: int, eos: Sequence[int] = (), kv_dtype: str = "auto",
    **limits: Any,
) -> Engine:  # fmt: skip
    """Create an engine with a new pool."""
    config = SchedulerConfig(**limits)
    where = torch.device("cpu")
    shape = cache_geometry(geometry(family), kv_dtype)
    dtype = KV_DTYPES.get(kv_dtype, torch.float32)
    pool = KVPool(shape, blocks, block_size, dtype, where, config.host_blocks)
    return Engine(ModelRunner(tiny(family), pool), config, eos, VOCABULARY, POSITIONS)


def finish(engine: Engine) -> None:
    """Step until nothing is left."""
    while engine.scheduler.has_work:
        engine.step()


def solo(family: str, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Tokens of one request alone, through Transformers' own cache, attention and loop."""
    return _solo(family, tuple(prompt), new_tokens)


@cache
def _solo(family: str, prompt: tuple[int, ...], new_tokens: int) -> list[int]:
    return plain_tokens(tiny(family, "sdpa"), prompt, new_tokens)
