"""GPT-2 (or another decoder) through Transformers' ``generate``, with a contiguous KV cache.

Four modes, an arm each:

    contiguous.sequential   one request after another, one StaticCache of the maximum length
    contiguous.batch        one left-padded batch, a StaticCache row of the maximum length each
    contiguous.compiled     the same with the decode step compiled, on a GPU
    contiguous.growing      one request after another, DynamicCache: Transformers' default;
                            each step reallocates every tensor

If the budget holds fewer slabs than requests, the batch runs in waves. Samples of a prompt are rows
with the same input, as with ``num_return_sequences``: each has its own copy of the prompt's keys
and values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    GenerationMixin,
    StaticCache,
    StoppingCriteriaList,
)

from experiment.arms.arrivals import (
    Batches,
    arrived_batches,
    count_fitting,
    ordered_batches,
)
from experiment.arms.base import ArmRun
from experiment.arms.contiguous_hooks import (
    UNWRITTEN,
    GrowingHook,
    Hook,
    StaticHook,
    cache_tensors,
)
from experiment.arms.sampling_arguments import sampling_arguments
from experiment.events import CacheMoved, ModelCompiled, WorkloadRequest
from experiment.workload.first_prompts import NEW_TOKENS
from kvsim.accounting.ledger import PoolShape
from kvsim.contiguous.planners import GrowingPlanner, StaticBatchPlanner

# Arguments of generate: run the model eagerly, or compile it as Transformers does.
EAGER: dict[str, Any] = {"disable_compile": True}
COMPILED: dict[str, Any] = {"disable_compile": False, "compile_config": CompileConfig()}
# New tokens during compilation: graphs are captured in the first decode steps.
_WARM_UP = 4
_COMPILED_ARM = "contiguous.compiled"
# Argument of generate for the cache; Transformers 5.24 renamed it.
_RENAMED = "cache" in signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE_ARGUMENT = "cache" if _RENAMED else "past_key_values"


def run_sequential(run: ArmRun) -> None:
    """Run one prompt after another, with a slab for each of its samples."""
    prompts = run.task.workload.samples()
    rows = min(run.task.slabs, max(map(len, prompts)))
    parts = [
        samples[start : start + rows]
        for samples in prompts
        for start in range(0, len(samples), rows)
    ]
    _run_static(run, rows, _longest(parts), lambda clock: ordered_batches(parts, clock))


def run_batch(run: ArmRun) -> None:
    """Run padded batches, limited by the slabs of the budget and by ``max_num_seqs``.

    In the arm ``contiguous.compiled`` Transformers compiles the decode steps, off the clock.
    """
    task, requests = run.task, run.task.workload.requests
    rows = min(task.slabs, len(requests), task.config.engine.max_num_seqs)
    length = task.workload.max_length
    first = requests[: count_fitting(requests, rows, length)]
    _run_static(run, rows, first, lambda clock: arrived_batches(requests, rows, length, clock))


def run_growing(run: ArmRun) -> None:
    """Run one prompt after another; the cache grows with every token."""
    run.execute(lambda model: _generate_growing(run, model))


def _generate_growing(run: ArmRun, model: Any) -> None:
    task = run.task
    caches: list[Any] = []
    prompts = task.workload.samples()
    rows, length = max(map(len, prompts)), task.workload.max_length
    shape = PoolShape(rows * length, 1, task.geometry.bytes_per_token, elastic=True)
    run.pool_reserved(shape, lambda: [t for cache in caches for t in cache_tensors(cache)])
    _warm_up(run, model, _longest(prompts), DynamicCache(config=model.config))
    for _ in run.measured():
        planner = GrowingPlanner(length, rows)
        run.begin_generation()
        clock = run.arrivals()
        left = len(task.workload.requests)
        for samples, waiting in ordered_batches(prompts, clock):
            left -= len(samples)
            cache = DynamicCache(config=model.config)
            caches[:] = [cache]
            hook = GrowingHook(cache, run, clock, planner, samples, waiting)
            _generate(model, samples, cache, hook)
            if not left:
                run.end_generation()
            caches.clear()
            del cache
            hook.release()
            run.emit(CacheMoved(arm=task.arm, request=samples[0].id, bytes=hook.moved_bytes))


def _longest(parts: Sequence[Sequence[WorkloadRequest]]) -> Sequence[WorkloadRequest]:
    return max(parts, key=lambda part: max(len(each.token_ids) for each in part))


def _run_static(run: ArmRun, rows: int, first: Sequence[WorkloadRequest], batches: Batches) -> None:
    """Run ``batches`` with a static cache; ``first`` is the warm-up batch."""
    run.execute(lambda model: _generate_static(run, model, rows, first, batches))


def _generate_static(
    run: ArmRun, model: Any, rows: int, first: Sequence[WorkloadRequest], batches: Batches
) -> None:
    task = run.task
    cache = _reserve(model, rows, run)
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    tensors = [tensor for pair in layers for tensor in pair]
    shape = PoolShape(rows, task.workload.max_length, task.geometry.bytes_per_token)
    run.pool_reserved(shape, lambda: tensors, lambda: unwritten_bytes(tensors))
    first = _filled(first, rows, task.arm)
    reset_cache(cache, layers, len(first))
    _warm_up(run, model, first, cache)
    for _ in run.measured():
        planner = StaticBatchPlanner(rows, task.workload.max_length)
        run.begin_generation()
        clock = run.arrivals()
        left = len(task.workload.requests)
        for batch, waiting in batches(clock):
            filled = _filled(batch, rows, task.arm)
            with run.paused():  # marking unwritten slots is not work of the arm
                reset_cache(cache, layers, len(filled))
            left -= len(batch)
            hook = StaticHook(layers, run, clock, planner, batch, waiting)
            _generate(model, filled, cache, hook)
            if not left:
                run.end_generation()
            hook.release()


def _warm_up(run: ArmRun, model: Any, batch: Sequence[WorkloadRequest], cache: Any) -> None:
    """Warm up with a batch's prefill and some decode steps, and discard the result.

    In ``contiguous.compiled`` Transformers compiles here.
    """
    arm, began = run.task.arm, time.perf_counter()
    if arm == _COMPILED_ARM:
        with run.paused():
            _generate_first(run, model, batch, cache, _WARM_UP)
            run.synchronize()
        run.emit(ModelCompiled(arm=arm, seconds=time.perf_counter() - began))
    elif run.has_warm_up:
        with run.recorded_warm_up([len(each.token_ids) for each in batch]):
            _generate_first(run, model, batch, cache, NEW_TOKENS)


@torch.inference_mode()
def _generate_first(
    run: ArmRun, model: Any, batch: Sequence[WorkloadRequest], cache: Any, new_tokens: int
) -> None:
    # As many as fit after the longest prompt: the last token's K and V are never written.
    room = run.task.workload.max_length + 1 - max(len(each.token_ids) for each in batch)
    short = [each.model_copy(update={"max_new_tokens": min(new_tokens, room)}) for each in batch]
    model.generate(**_arguments(model, short, cache), **_compiling(run.task.arm))


def _compiling(arm: str) -> dict[str, Any]:
    return COMPILED if arm == _COMPILED_ARM else EAGER


def _filled(batch: Sequence[WorkloadRequest], rows: int, arm: str) -> list[WorkloadRequest]:
    """Fill a compiled batch up to ``rows`` by repeating its last request.

    Another number of rows would be recompiled, on the clock. The additional output is discarded.
    """
    left = rows - len(batch) if arm == _COMPILED_ARM else 0
    return [*batch, *[batch[-1]] * left]


def _reserve(model: Any, rows: int, run: ArmRun) -> Any:
    """Reserve a static cache before the prefill, with every slot marked as unwritten."""
    task = run.task
    cache = StaticCache(config=model.config, max_cache_len=task.workload.max_length)
    geometry = task.geometry
    cache.early_initialization(
        batch_size=rows,
        num_heads=geometry.kv_heads,
        head_dim=geometry.head_dim,
        dtype=task.dtype,
        device=run.device,
    )
    for tensor in cache_tensors(cache):
        tensor.fill_(UNWRITTEN)
    return cache


def reset_cache(cache: Any, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], rows: int) -> None:
    """Reset the cache for ``rows`` requests; a smaller last batch uses the first slabs."""
    cache.reset()  # resets state of layers other than keys and values
    for layer, (keys, values) in zip(cache.layers, layers, strict=True):
        # Compiled code identifies the cache by its tensors, so use the tensors themselves if
        # possible.
        whole = rows == keys.shape[0]
        layer.keys, layer.values = (keys, values) if whole else (keys[:rows], values[:rows])
        layer.batch_size = rows
        keys.fill_(UNWRITTEN)
        values.fill_(UNWRITTEN)


@torch.inference_mode()
def _generate(model: Any, batch: Sequence[WorkloadRequest], cache: Any, hook: Hook) -> None:
    longest = max(len(request.token_ids) for request in batch)
    arguments = _arguments(model, batch, cache)
    hook.begin()
    model.generate(
        **arguments,
        **sampling_arguments(hook.run.task.workload.sampling, hook.stops, longest),
        stopping_criteria=StoppingCriteriaList([hook]),
        **_compiling(hook.run.task.arm),
    )


def _arguments(model: Any, batch: Sequence[WorkloadRequest], cache: Any) -> dict[str, Any]:
    longest = max(len(request.token_ids) for request in batch)
    pads = [longest - len(request.token_ids) for request in batch]
    device = next(model.parameters()).device
    ids = [[0] * pad + request.token_ids for pad, request in zip(pads, batch, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
        CACHE_ARGUMENT: cache,
        "max_new_tokens": max(request.max_new_tokens for request in batch),
        "num_beams": 1,
        "eos_token_id": None,  # the hook applies the stop rule of all arms
        "pad_token_id": 0,
    }


def unwritten_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of slots that hold the filler value, from [rows, heads, slots, dim] tensors alone."""
    total = 0
    for tensor in tensors:
        filler = torch.tensor(UNWRITTEN, dtype=tensor.dtype, device=tensor.device)
        slots = int((tensor == filler).all(-1).all(1).sum().item())  # of [rows, slots]
        total += slots * tensor.shape[1] * tensor.shape[3] * tensor.element_size()
    return total
