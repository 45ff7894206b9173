"""Micro-benchmark of block tables: one kernel on the same keys and values in three layouts.

    contiguous   request 0 [ k v k v k v k v ]     one block for all of a request
    ordered      table 0 1 2 3 | 4 5 6 7           blocks of the pool's size, consecutive
    scattered    table 6 1 4 3 | 0 7 2 5           the same blocks in random order

Attention of one layer and decode step is timed, with the layouts interleaved so that background
load affects all. On a GPU a call takes the host longer than the device, and recent data are in the
L2 cache. So calls are captured over copies that together exceed the cache, and device events time
replays.

    graph of a layout     attend(copy 0)  attend(copy 1) ...  attend(copy n)     > 2 L2 caches
    one turn              replay | event  replay  replay ...  replay  event
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import torch

from experiment.engine.attention.kernels import KERNELS
from experiment.engine.cuda.decode_graphs import Work, cuda_capture
from experiment.engine.step_inputs import StepInputs, build_inputs
from experiment.process.wire import is_out_of_memory
from kvsim.core.blocks import blocks_needed
from kvsim.core.step import Chunk, StepPlan
from kvsim.sizing.geometry import KVGeometry

ROUNDS = 30
_CALLS = 5
_SEED = 0


@dataclass(frozen=True, slots=True)
class Lookup:
    """Seconds per call, median over all rounds."""

    contiguous_s: float
    ordered_s: float
    scattered_s: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys and values of a layer, [2, blocks, kv_heads, block_size, head_dim], and block tables."""

    kv: torch.Tensor
    inputs: StepInputs


def layouts(
    shape: KVGeometry, requests: int, context: int, block_size: int, like: torch.Tensor
) -> list[Layout]:
    """The three layouts with the same random content, with device and dtype of ``like``."""
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
    """Random queries of a decode step, [requests, heads, head_dim]; ``like`` is keys and values."""
    drawn = torch.Generator().manual_seed(_SEED + 1)
    return torch.randn(requests, heads, like.shape[-1], generator=drawn).to(like)


@torch.inference_mode()
def time_lookup(
    kernel: str, q: torch.Tensor, given: list[Layout], rounds: int = ROUNDS
) -> Lookup | None:
    """Time the layouts of :func:`layouts` with the queries ``q``, [requests, heads, head_dim].

    None if the device waits for the host, so that host time would be measured, or cannot capture
    calls.
    """
    attend, scale = KERNELS[kernel], float(q.shape[-1]) ** -0.5
    cache = _l2_bytes(q.device)
    # Kept alive until the end: a graph holds no reference to the tensors that it reads.
    copies = [_copies(layout.kv, cache) for layout in given]

    def timer(layout: Layout, read: list[torch.Tensor]) -> Timer:
        def work() -> None:
            for kv in read:
                attend(q, kv, layout.inputs, scale)

        return _replays(work, len(read), q.device) if cache else _calls(work, len(read))

    try:
        timers = [timer(layout, read) for layout, read in zip(given, copies, strict=True)]
    except RuntimeError as error:  # not permitted when stream is capturing
        if is_out_of_memory(repr(error)):
            raise
        return None
    times: list[list[Timed]] = [[] for _ in given]
    for turn in range(rounds + 1):
        for run, samples in zip(timers, times, strict=True):
            timed = run()
            if turn:  # the first turn is the warm-up
                samples.append(timed)
    calls = [median(each.call_s for each in samples) for samples in times]
    hosts = [median(each.host_s for each in samples) for samples in times]
    # If host time is more than half of the call, the device may be waiting for the host.
    if any(2 * host > call for host, call in zip(hosts, calls, strict=True)):
        return None
    return Lookup(*calls)


class Timed(NamedTuple):
    """Seconds of one call, and the part in which the host launches it."""

    call_s: float
    host_s: float


Timer = Callable[[], Timed]


def _l2_bytes(device: torch.device) -> int:
    """Bytes of a GPU's L2 cache; 0 for a CPU, which is timed directly."""
    cuda: Any = torch.cuda  # torch has no types for some of these
    return int(cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def _copies(kv: torch.Tensor, cache: int) -> list[torch.Tensor]:
    """Tensors read by the successive calls of one turn: more than twice ``cache`` bytes."""
    copies = [kv, *(kv.clone() for _ in range(2 * cache // kv.nbytes))]
    return [copies[call % len(copies)] for call in range(max(_CALLS, len(copies)))]


def _calls(work: Work, calls: int) -> Timer:
    """Time calls directly with the host's clock."""

    def run() -> Timed:
        began = time.perf_counter()
        work()
        return Timed((time.perf_counter() - began) / calls, 0.0)

    return run


def _replays(work: Work, calls: int, device: torch.device) -> Timer:
    """Time calls captured as a graph with device events; host time is that of launching."""
    cuda: Any = torch.cuda
    replay = cuda_capture(device)(work)
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    total = _CALLS * calls

    def run() -> Timed:
        replay()  # the host gets ahead
        began = time.perf_counter()
        begin.record()
        for _ in range(_CALLS):
            replay()
        end.record()
        host_s = time.perf_counter() - began
        end.synchronize()
        return Timed(begin.elapsed_time(end) / 1e3 / total, host_s / total)

    return run
