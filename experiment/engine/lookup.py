"""What reading through a block table costs: the same kernel, the same keys and values, three ways.

    contiguous   request 0 [ k v k v k v k v ]     one block that holds all of a request
    ordered      table 0 1 2 3 | 4 5 6 7           blocks of the pool's size, one behind the other
    scattered    table 6 1 4 3 | 0 7 2 5           the same blocks anywhere

One decoding step's attention of one layer is timed, the three in turn, so that what disturbs the
machine disturbs all of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch

from experiment.engine.kernels import KERNELS
from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.blocks import blocks_needed
from kvsim.geometry import KVGeometry
from kvsim.step import Chunk, StepPlan

ROUNDS = 30
_CALLS = 5
_SEED = 0


@dataclass(frozen=True, slots=True)
class Lookup:
    """Seconds of one call, median of all rounds."""

    contiguous_s: float
    ordered_s: float
    scattered_s: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys and values of a layer, [2, blocks, kv_heads, block_size, head_dim], and who has them."""

    kv: torch.Tensor
    inputs: StepInputs


def layouts(
    shape: KVGeometry, requests: int, context: int, block_size: int, like: torch.Tensor
) -> list[Layout]:
    """The three layouts with the same random content, on the device and in the type of ``like``."""
    per_request = blocks_needed(context, block_size)
    slots = per_request * block_size
    drawn = torch.Generator().manual_seed(_SEED)
    heads, dim = shape.kv_heads, shape.head_dim
    whole = torch.randn(2, requests, heads, slots, dim, generator=drawn).to(like)
    cut = whole.view(2, requests, heads, per_request, block_size, dim)
    cut = cut.transpose(2, 3).reshape(2, requests * per_request, heads, block_size, dim)
    places = torch.randperm(requests * per_request, generator=drawn)
    scattered = torch.empty_like(cut)
    scattered[:, places.to(like.device)] = cut
    ordered = list(range(requests * per_request))
    return [
        _layout(whole, context, ordered[:requests], 1),
        _layout(cut, context, ordered, per_request),
        _layout(scattered, context, places.tolist(), per_request),
    ]


def _layout(kv: torch.Tensor, context: int, blocks: list[int], per_request: int) -> Layout:
    requests, block_size = len(blocks) // per_request, kv.shape[3]
    plan = StepPlan(
        step=0,
        chunks=tuple(Chunk(request, context - 1, 1, samples=True) for request in range(requests)),
    )
    tables = {r: blocks[r * per_request : (r + 1) * per_request] for r in range(requests)}
    tokens = {request: [0] * context for request in range(requests)}
    return Layout(kv, build_inputs(plan, tokens, tables, block_size, kv.device))


def queries(requests: int, heads: int, like: torch.Tensor) -> torch.Tensor:
    """Random ones of a decoding step, [requests, heads, head_dim]; ``like`` is keys and values."""
    drawn = torch.Generator().manual_seed(_SEED + 1)
    return torch.randn(requests, heads, like.shape[-1], generator=drawn).to(like)


@torch.inference_mode()
def time_lookup(kernel: str, q: torch.Tensor, given: list[Layout], rounds: int = ROUNDS) -> Lookup:
    """Time the layouts of :func:`layouts` with the queries ``q``, [requests, heads, head_dim]."""
    attend, scale = KERNELS[kernel], float(q.shape[-1]) ** -0.5
    times: list[list[float]] = [[] for _ in given]
    for turn in range(rounds + 1):
        for layout, seen in zip(given, times, strict=True):
            _wait(q)
            began = time.perf_counter()
            for _ in range(_CALLS):
                attend(q, layout.kv, layout.inputs, scale)
            _wait(q)
            if turn:  # the first turn warms up
                seen.append((time.perf_counter() - began) / _CALLS)
    return Lookup(*(median(seen) for seen in times))


def _wait(q: torch.Tensor) -> None:
    if q.device.type == "cuda":
        torch.cuda.synchronize(q.device)
