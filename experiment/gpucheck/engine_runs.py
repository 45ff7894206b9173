"""Engine runs with tiny random models, for parts that compare tokens."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from experiment.engine.attention.interface import ATTENTION
from experiment.engine.cuda.decode_graphs import cuda_capture
from experiment.engine.cuda.triton_support import too_old
from experiment.engine.engine import Engine
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.gpucheck.tiny_models import CONFIGS, POSITIONS, VOCABULARY, plain_tokens, tiny
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import OpKind
from kvsim.sizing.geometry import geometry_from_config

# (prompt tokens, new tokens) of each request; fewer for the interpreter.
Requests = Sequence[tuple[int, int]]
MANY: Requests = ((1, 6), (20, 8), (9, 10), (5, 12), (2, 14))
FEW: Requests = ((1, 3), (9, 4), (4, 4))


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Tokens per request, number of blocks swapped out, number of graph replays."""

    tokens: list[list[int]]
    swapped_blocks: int
    graph_steps: int
    is_pinned: bool


def prompt(tokens: int) -> list[int]:
    """Token ids of a prompt."""
    return list(range(3, 3 + tokens))


def engine_tokens(
    family: str, device: torch.device, requests: Requests, dtype: torch.dtype = torch.float32,
    *, graphs: bool = False, compiled: bool = False, blocks: int = 60, **limits: Any,
) -> EngineRun:  # fmt: skip
    """Run the requests together, over blocks of 4 slots; with our kernels, if the GPU has them.

    Args:
        graphs: replay decode steps from CUDA graphs.
        compiled: compile the layers with torch.
        blocks: size of the pool; a small one preempts.
        limits: limits of the scheduler.
    """
    config = SchedulerConfig(**limits)
    shape = geometry_from_config(CONFIGS[family]().to_dict(), dtype.itemsize)
    pool = KVPool(shape, blocks, 4, dtype, device, config.host_blocks)
    runner = ModelRunner(_model(family, ATTENTION, str(device), dtype), pool, kernel_of(device))
    if graphs:
        runner.capture_decoding(len(requests), POSITIONS, cuda_capture(device), compiled=compiled)
    engine = Engine(runner, config, (), VOCABULARY, POSITIONS)
    for request, (length, new) in enumerate(requests):
        engine.add(request, prompt(length), new)
    swapped = 0
    while engine.scheduler.has_work:
        outcome, _ = engine.step()
        swapped += sum(len(op.blocks) for op in outcome.plan.ops if op.kind is OpKind.SWAP_OUT)
    return EngineRun(
        tokens=[engine.generated(request) for request in range(len(requests))],
        swapped_blocks=swapped,
        graph_steps=runner.graphs.counts.steps if runner.graphs else 0,
        is_pinned=pool.host is not None and pool.host.is_pinned(),
    )


def kernel_of(device: torch.device) -> str:
    """The engine's kernel: Triton's, on a GPU that it does not support torch's."""
    return "torch" if device.type == "cuda" and too_old(device) else "triton"


def transformers_tokens(
    family: str, device: torch.device, requests: Requests, dtype: torch.dtype = torch.float32
) -> list[list[int]]:
    """Tokens of each request alone, by Transformers' ``generate``."""
    model = _model(family, "sdpa", str(device), dtype)
    return [plain_tokens(model, prompt(length), new) for length, new in requests]


def divergences(ours: list[list[int]], theirs: list[list[int]]) -> list[int]:
    """The index of the first differing token of each request that has one."""
    pairs = [zip(mine, other, strict=True) for mine, other in zip(ours, theirs, strict=True)]
    firsts = (next((i for i, (a, b) in enumerate(each) if a != b), None) for each in pairs)
    return [first for first in firsts if first is not None]


@cache
def _model(family: str, attention: str, device: str, dtype: torch.dtype) -> Any:
    return copy.deepcopy(tiny(family, attention)).to(device, dtype)
