"""GPT-2 (or another decoder) through Transformers' ``generate``, with a contiguous KV cache.

Four modes, an arm each:

    contiguous.sequential   one request after another, one StaticCache of the maximum length
    contiguous.batch        one left-padded batch, a StaticCache row of the maximum length each
    contiguous.compiled     the same with the decoding step compiled, where there is a GPU
    contiguous.growing      one request after another, DynamicCache: what Transformers does
                            when it is given nothing; each step reallocates every tensor

Where the budget holds fewer slabs than there are requests, the batch runs in waves. Several
samples of a prompt are rows with the same input, which is what ``num_return_sequences`` makes
of them: each has a whole copy of the prompt's keys and values.
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

from experiment.arms.arrivals import Batches, as_they_come, clock_of, fitting, in_order
from experiment.arms.base import ArmRun
from experiment.arms.choice import choice, first_run
from experiment.arms.contiguous_hooks import (
    UNWRITTEN,
    GrowingHook,
    Hook,
    StaticHook,
    cache_tensors,
)
from experiment.events import CacheMoved, ModelCompiled, WorkloadRequest
from experiment.workload.first_prompts import NEW_TOKENS
from kvsim.accounting.ledger import PoolShape
from kvsim.contiguous.planners import GrowingPlanner, StaticBatchPlanner

ATTENTION = "sdpa"
# What generate is told: to leave the model as it is, or to compile it as Transformers itself does.
EAGER: dict[str, Any] = {"disable_compile": True}
COMPILED: dict[str, Any] = {"disable_compile": False, "compile_config": CompileConfig()}
# New tokens while compiling: the graphs are captured in the first steps that decode.
_WARM_UP = 4
_COMPILED_ARM = "contiguous.compiled"
# The argument of generate that takes a cache; Transformers 5.24 renamed it.
_RENAMED = "cache" in signature(GenerationMixin.prepare_inputs_for_generation).parameters
_CACHE = "cache" if _RENAMED else "past_key_values"


def run_sequential(run: ArmRun) -> None:
    """One prompt after another, a slab for each of its samples."""
    prompts = run.task.workload.samples()
    rows = min(run.task.slabs, max(map(len, prompts)))
    parts = [part for samples in prompts for part in _parts(samples, rows)]
    _run_static(run, rows, lambda clock: in_order(parts, clock), _longest(parts))


def run_batch(run: ArmRun) -> None:
    """Padded batches of as many requests as the budget holds slabs and may run at a time.

    Of the arm ``contiguous.compiled`` Transformers compiles the decoding steps, off the clock.
    """
    task, requests = run.task, run.task.workload.requests
    rows = min(task.slabs, len(requests), task.config.engine.max_num_seqs)
    length = task.workload.max_length
    first = requests[: fitting(requests, rows, length)]
    _run_static(run, rows, lambda clock: as_they_come(requests, rows, length, clock), first)


def run_growing(run: ArmRun) -> None:
    """One prompt after another; the cache grows with every token."""
    model: Any = run.load(ATTENTION)
    _generate_growing(run, model)
    del model
    run.finish()


def _generate_growing(run: ArmRun, model: Any) -> None:
    task = run.task
    caches: list[Any] = []
    slot_bytes = task.geometry.bytes_per_token
    prompts = task.workload.samples()
    rows = max(map(len, prompts))
    shape = PoolShape(rows * task.workload.max_length, 1, slot_bytes, elastic=True)
    run.pool_reserved(shape, lambda: [t for cache in caches for t in cache_tensors(cache)])
    _compute_before(run, model, _longest(prompts), DynamicCache(config=model.config))
    for _ in run.repeats():
        _grow_all(run, model, prompts, caches)


def _grow_all(
    run: ArmRun, model: Any, prompts: Sequence[Sequence[WorkloadRequest]], caches: list[Any]
) -> None:
    """Every prompt once; ``caches`` holds the one that is there."""
    task = run.task
    planner = GrowingPlanner(task.workload.max_length, max(map(len, prompts)))
    run.begin_generation()
    clock = clock_of(run)
    left = len(task.workload.requests)
    for samples, waiting in in_order(prompts, clock):
        left -= len(samples)
        cache = DynamicCache(config=model.config)
        caches[:] = [cache]
        hook = GrowingHook(run, clock, planner, samples, cache, waiting)
        _generate(model, samples, cache, hook)
        if not left:
            run.end_generation()
        caches.clear()
        del cache
        hook.release()
        run.emit(CacheMoved(arm=task.arm, request=samples[0].id, bytes=hook.moved_bytes))


def _parts(requests: Sequence[WorkloadRequest], rows: int) -> list[Sequence[WorkloadRequest]]:
    return [requests[start : start + rows] for start in range(0, len(requests), rows)]


def _longest(parts: Sequence[Sequence[WorkloadRequest]]) -> Sequence[WorkloadRequest]:
    return max(parts, key=lambda part: max(len(each.token_ids) for each in part))


def _run_static(run: ArmRun, rows: int, batches: Batches, first: Sequence[WorkloadRequest]) -> None:
    """``first``: the batch that is computed before the clock."""
    model: Any = run.load(ATTENTION)
    _generate_static(run, model, rows, batches, first)
    del model
    run.finish()


def _generate_static(
    run: ArmRun, model: Any, rows: int, batches: Batches, first: Sequence[WorkloadRequest]
) -> None:
    task = run.task
    cache = _reserve(model, rows, run)
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    tensors = [tensor for pair in layers for tensor in pair]
    shape = PoolShape(rows, task.workload.max_length, task.geometry.bytes_per_token)
    run.pool_reserved(shape, lambda: tensors, lambda: unwritten_bytes(tensors))
    first = _filled(first, rows, task.arm)
    reset_cache(cache, layers, len(first))
    _compute_before(run, model, first, cache)
    for _ in run.repeats():
        planner = StaticBatchPlanner(rows, task.workload.max_length)
        _run_batches(run, model, batches, planner, cache, layers)


def _compute_before(run: ArmRun, model: Any, batch: Sequence[WorkloadRequest], cache: Any) -> None:
    """Compute a batch's prompt step and some decoding steps, and keep nothing of them.

    Transformers compiles in them, where it does.
    """
    arm, began = run.task.arm, time.perf_counter()
    if arm == _COMPILED_ARM:
        with run.paused():
            _generate_first(run, model, batch, cache, _WARM_UP)
            run.synchronize()
        run.emit(ModelCompiled(arm=arm, seconds=time.perf_counter() - began))
    elif run.computes_before:
        with first_run(run, [len(each.token_ids) for each in batch]):
            _generate_first(run, model, batch, cache, NEW_TOKENS)


@torch.inference_mode()
def _generate_first(
    run: ArmRun, model: Any, batch: Sequence[WorkloadRequest], cache: Any, new_tokens: int
) -> None:
    # As many as fit behind the longest prompt: the last token's K and V are never written.
    room = run.task.workload.max_length + 1 - max(len(each.token_ids) for each in batch)
    short = [each.model_copy(update={"max_new_tokens": min(new_tokens, room)}) for each in batch]
    model.generate(**_arguments(model, short, cache), **_compiling(run.task.arm))


def _compiling(arm: str) -> dict[str, Any]:
    return COMPILED if arm == _COMPILED_ARM else EAGER


def _run_batches(
    run: ArmRun,
    model: Any,
    batches: Batches,
    planner: StaticBatchPlanner,
    cache: Any,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Every batch once."""
    run.begin_generation()
    clock = clock_of(run)
    left = len(run.task.workload.requests)
    for batch, waiting in batches(clock):
        filled = _filled(batch, layers[0][0].shape[0], run.task.arm)
        with run.paused():  # what marks unwritten slots is no work of this arm
            reset_cache(cache, layers, len(filled))
        left -= len(batch)
        hook = StaticHook(run, clock, planner, batch, layers, waiting)
        _generate(model, filled, cache, hook)
        if not left:
            run.end_generation()
        hook.release()


def _filled(batch: Sequence[WorkloadRequest], rows: int, arm: str) -> list[WorkloadRequest]:
    """The batch; of the arm that compiles its last request again for every slab that is left.

    Another number of rows would be compiled anew, on the clock. What they generate is thrown away.
    """
    left = rows - len(batch) if arm == _COMPILED_ARM else 0
    return [*batch, *[batch[-1]] * left]


def _reserve(model: Any, rows: int, run: ArmRun) -> Any:
    """A static cache that is there before the prefill, every slot marked as unwritten."""
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
    """Make the cache as new for ``rows`` requests; a smaller last batch uses the first slabs."""
    cache.reset()  # Transformers knows what each kind of layer keeps beside keys and values
    for layer, (keys, values) in zip(cache.layers, layers, strict=True):
        # A view would be another tensor to compiled code, which knows the cache by its address.
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
        **choice(hook.run.task.workload.sampling, hook.stops, longest),
        stopping_criteria=StoppingCriteriaList([hook]),
        **_compiling(hook.run.task.arm),
    )


def _arguments(model: Any, batch: Sequence[WorkloadRequest], cache: Any) -> dict[str, Any]:
    """A left-padded batch and its cache, as ``generate`` takes them."""
    longest = max(len(request.token_ids) for request in batch)
    pads = [longest - len(request.token_ids) for request in batch]
    device = next(model.parameters()).device
    ids = [[0] * pad + request.token_ids for pad, request in zip(pads, batch, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
        _CACHE: cache,
        "max_new_tokens": max(request.max_new_tokens for request in batch),
        "num_beams": 1,
        "eos_token_id": None,  # the hook applies the stop rule that all arms share
        "pad_token_id": 0,
    }


def unwritten_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the slots that hold the filler value, by [rows, heads, slots, dim] tensors alone."""
    total = 0
    for tensor in tensors:
        filler = torch.tensor(UNWRITTEN, dtype=tensor.dtype, device=tensor.device)
        slots = int((tensor == filler).all(-1).all(1).sum().item())  # of [rows, slots]
        total += slots * tensor.shape[1] * tensor.shape[3] * tensor.element_size()
    return total
