"""GPT-2 (or another decoder) through Transformers' ``generate``, with a contiguous KV cache.

Three modes, an arm each:

    contiguous.sequential   one request after another, one StaticCache of the maximum length
    contiguous.batch        one left-padded batch, a StaticCache row of the maximum length each
    contiguous.growing      one request after another, DynamicCache: what Transformers does
                            when it is given nothing; each step reallocates every tensor

Where the budget holds fewer slabs than there are requests, the batch runs in waves. Several
samples of a prompt are rows with the same input, which is what ``num_return_sequences`` makes
of them: each has a whole copy of the prompt's keys and values.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import DynamicCache, StaticCache, StoppingCriteria, StoppingCriteriaList

from experiment.arms.arrivals import ArrivalClock, Batches, as_they_come, in_order
from experiment.arms.base import ArmRun, RequestTimes
from experiment.arms.choice import choice
from experiment.events import CacheMoved, WorkloadRequest
from kvsim.contiguous import GrowingPlanner, StaticBatchPlanner
from kvsim.ledger import PoolShape
from kvsim.step import FinishReason

ATTENTION = "sdpa"
# Fills slots that nobody has written yet, so that written ones can be counted. Transformers
# reads every slot of a static cache and masks the unwritten ones, which NaN would survive; this
# number is finite, exact in every precision, and no key that a model computes.
UNWRITTEN = -0.123046875
_WITNESS_DIMS = 4


def run_sequential(run: ArmRun) -> None:
    """One prompt after another, a slab for each of its samples."""
    prompts = run.task.workload.samples()
    rows = min(run.task.slabs, max(map(len, prompts)))
    parts = [part for samples in prompts for part in _parts(samples, rows)]
    _run_static(run, rows, lambda clock: in_order(parts, clock))


def run_batch(run: ArmRun) -> None:
    """Padded batches of as many requests as the budget holds slabs and may run at a time."""
    task, requests = run.task, run.task.workload.requests
    rows = min(task.slabs, len(requests), task.config.engine.max_num_seqs)
    if not task.config.workload.arrivals:
        _run_static(run, rows, lambda clock: in_order(_parts(requests, rows), clock))
        return
    length = task.workload.max_length
    _run_static(run, rows, lambda clock: as_they_come(requests, rows, length, clock))


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
    run.pool_reserved(shape, lambda: [t for cache in caches for t in _cache_tensors(cache)])
    for _ in run.repeats():
        _grow_all(run, model, prompts, caches)


def _grow_all(
    run: ArmRun, model: Any, prompts: Sequence[Sequence[WorkloadRequest]], caches: list[Any]
) -> None:
    """Every prompt once; ``caches`` holds the one that is there."""
    task = run.task
    planner = GrowingPlanner(task.workload.max_length, max(map(len, prompts)))
    run.begin_generation()
    clock = ArrivalClock(run)
    left = len(task.workload.requests)
    for samples, waiting in in_order(prompts, clock):
        left -= len(samples)
        cache = DynamicCache(config=model.config)
        caches[:] = [cache]
        hook = _GrowingHook(run, clock, planner, samples, cache, waiting)
        _generate(model, samples, cache, hook)
        if not left:
            run.end_generation()
        caches.clear()
        del cache
        hook.release()
        run.emit(CacheMoved(arm=task.arm, request=samples[0].id, bytes=hook.moved_bytes))


def _parts(requests: Sequence[WorkloadRequest], rows: int) -> list[Sequence[WorkloadRequest]]:
    return [requests[start : start + rows] for start in range(0, len(requests), rows)]


def _run_static(run: ArmRun, rows: int, batches: Batches) -> None:
    model: Any = run.load(ATTENTION)
    _generate_static(run, model, rows, batches)
    del model
    run.finish()


def _generate_static(run: ArmRun, model: Any, rows: int, batches: Batches) -> None:
    task = run.task
    cache = _reserve(model, rows, run)
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    tensors = [tensor for pair in layers for tensor in pair]
    shape = PoolShape(rows, task.workload.max_length, task.geometry.bytes_per_token)
    run.pool_reserved(shape, lambda: tensors, lambda: unwritten_bytes(tensors))
    for repeat in run.repeats():
        planner = StaticBatchPlanner(rows, task.workload.max_length)
        _run_batches(run, model, batches, planner, cache, layers, used=repeat > 0)


def _run_batches(
    run: ArmRun,
    model: Any,
    batches: Batches,
    planner: StaticBatchPlanner,
    cache: Any,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    used: bool,
) -> None:
    """Every batch once; ``used``: the cache holds something already."""
    run.begin_generation()
    clock = ArrivalClock(run)
    left = len(run.task.workload.requests)
    for batch, waiting in batches(clock):
        with run.paused():  # what marks unwritten slots is no work of this arm
            _reset(cache, layers, len(batch), refill=used)
        used, left = True, left - len(batch)
        hook = _StaticHook(run, clock, planner, batch, layers, waiting)
        _generate(model, batch, cache, hook)
        if not left:
            run.end_generation()
        hook.release()


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
    for tensor in _cache_tensors(cache):
        tensor.fill_(UNWRITTEN)
    return cache


def _reset(
    cache: Any, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], rows: int, refill: bool
) -> None:
    """Make the cache empty for ``rows`` requests; a smaller last batch uses the first slabs."""
    for layer, (keys, values) in zip(cache.layers, layers, strict=True):
        layer.cumulative_length.zero_()
        layer.keys, layer.values = keys[:rows], values[:rows]
        layer.batch_size = rows
        if refill:
            keys.fill_(UNWRITTEN)
            values.fill_(UNWRITTEN)


def _cache_tensors(cache: Any) -> Iterable[torch.Tensor]:
    for layer in cache.layers:
        if layer.is_initialized:
            yield layer.keys
            yield layer.values


@torch.inference_mode()
def _generate(model: Any, batch: Sequence[WorkloadRequest], cache: Any, hook: _Hook) -> None:
    longest = max(len(request.token_ids) for request in batch)
    pads = [longest - len(request.token_ids) for request in batch]
    device = next(model.parameters()).device
    ids = [[0] * pad + request.token_ids for pad, request in zip(pads, batch, strict=True)]
    mask = [[0] * pad + [1] * (longest - pad) for pad in pads]
    hook.begin()
    model.generate(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=torch.tensor(mask, device=device),
        past_key_values=cache,
        max_new_tokens=max(request.max_new_tokens for request in batch),
        num_beams=1,
        eos_token_id=None,  # the hook applies the stop rule that all arms share
        pad_token_id=0,
        **choice(hook.run.task.workload.sampling, hook.stops, longest),
        stopping_criteria=StoppingCriteriaList([hook]),
        disable_compile=True,
    )


@dataclass(slots=True)
class _Progress:
    """One request inside a batch."""

    request: WorkloadRequest
    tokens: list[int] = field(default_factory=list)
    first_token: int | None = None
    reason: FinishReason | None = None


class _Hook(StoppingCriteria):  # type: ignore[misc]
    """Called by ``generate`` after each token: keeps the requests' records and logs the step."""

    def __init__(self, run: ArmRun, clock: ArrivalClock, batch: Sequence[WorkloadRequest]) -> None:
        self.run = run
        self.clock = clock
        self.rows = [_Progress(request) for request in batch]
        self.stops = set(run.task.workload.sampling.stop_token_ids)
        eos = run.task.model.eos_token_id
        if eos is not None and not run.task.config.workload.ignore_eos:
            self.stops.add(eos)
        self.started = 0
        self.step_started_ns = 0

    def begin(self) -> None:
        """The batch starts now."""
        self.started = self.run.now()
        self.step_started_ns = _monotonic(self.run)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002
        """Take the newest token of each row; [rows] of bool, true where the request has ended."""
        last = input_ids[:, -1].tolist()  # waits for the device: the token is there now
        now = self.run.now()
        with self.run.paused():
            self.log_step()
            self.clock.tick()
            for row, token in zip(self.rows, last, strict=True):
                self._take(row, token, now)
        self.step_started_ns = _monotonic(self.run)
        done = [row.reason is not None for row in self.rows]
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)

    def log_step(self) -> None:
        """Emit the plan of the step that has just run."""
        raise NotImplementedError

    def newly_finished(self, row: _Progress, reason: FinishReason) -> None:
        """Told once for each request that ends."""
        raise NotImplementedError

    def _take(self, row: _Progress, token: int, now: int) -> None:
        if row.reason is not None:
            return  # the batch goes on for others; what this row generates is thrown away
        row.tokens.append(token)
        if row.first_token is None:
            row.first_token = now
        if token in self.stops:
            row.reason = FinishReason.STOP
        elif len(row.tokens) >= row.request.max_new_tokens:
            row.reason = FinishReason.LENGTH
        if row.reason is not None:
            self.newly_finished(row, row.reason)
            arrived = self.clock.moment(row.request) if row.request.arrival else None
            times = RequestTimes(self.started, row.first_token, now, arrived)
            self.run.request_finished(row.request, row.reason.value, row.tokens, times)


class _StaticHook(_Hook):
    """Logs the steps of a static batch."""

    def __init__(
        self,
        run: ArmRun,
        clock: ArrivalClock,
        planner: StaticBatchPlanner,
        batch: Sequence[WorkloadRequest],
        layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
        waiting: int,
    ) -> None:
        super().__init__(run, clock, batch)
        self.planner = planner
        self.layers = layers
        self.waiting = waiting
        self._steps = 0
        self._finished: list[tuple[int, FinishReason]] = []

    def log_step(self) -> None:
        if self._steps:
            plan = self.planner.decode(self._finished, self.waiting)
            self._finished = []
        else:
            prompts = [(row.request.id, len(row.request.token_ids)) for row in self.rows]
            plan = self.planner.start(prompts, self.waiting)
        self._steps += 1
        self.run.step(
            plan, self.step_started_ns, self.planner.tables, self.planner.written, self.witness
        )

    def newly_finished(self, row: _Progress, reason: FinishReason) -> None:
        self._finished.append((row.request.id, reason))

    def release(self) -> None:
        """Log that every slab is given back."""
        plan = self.planner.release(self._finished, self.waiting)
        started = _monotonic(self.run)
        self.run.step(plan, started, self.planner.tables, self.planner.written)

    def witness(self) -> int:
        """Slots that no longer hold the filler value, from the tensors alone."""
        return written_slots(self.layers)


class _GrowingHook(_Hook):
    """Logs the steps of the samples of one prompt in a growing cache."""

    def __init__(
        self,
        run: ArmRun,
        clock: ArrivalClock,
        planner: GrowingPlanner,
        samples: Sequence[WorkloadRequest],
        cache: Any,
        waiting: int,
    ) -> None:
        super().__init__(run, clock, samples)
        self.planner = planner
        self.cache = cache
        self.waiting = waiting
        self.moved_bytes = 0
        self._held_bytes = 0
        self._finished: list[tuple[int, FinishReason]] = []

    def log_step(self) -> None:
        if self.rows[0].tokens:
            plan = self.planner.decode(self._finished, self.waiting)
            self._finished = []
        else:
            prompt = len(self.rows[0].request.token_ids)
            ids = [row.request.id for row in self.rows]
            plan = self.planner.start(ids, prompt, self.waiting)
        # Concatenation writes every tensor anew: what was there before is copied.
        self.moved_bytes += self._held_bytes
        self._held_bytes = sum(t.nbytes for t in _cache_tensors(self.cache))
        self.run.step(
            plan, self.step_started_ns, self.planner.tables, self.planner.written, self.witness
        )

    def newly_finished(self, row: _Progress, reason: FinishReason) -> None:
        self._finished.append((row.request.id, reason))

    def release(self) -> None:
        """Log that the cache is given back."""
        self.cache = None
        plan = self.planner.release(self._finished, self.waiting)
        started = _monotonic(self.run)
        self.run.step(plan, started, self.planner.tables, self.planner.written)

    def witness(self) -> int:
        """Positions that the cache's tensors hold, over all rows."""
        keys = self.cache.layers[0].keys
        return int(keys.shape[0] * keys.shape[-2])


def unwritten_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the slots that hold the filler value, by [rows, heads, slots, dim] tensors alone."""
    total = 0
    for tensor in tensors:
        filler = torch.tensor(UNWRITTEN, dtype=tensor.dtype, device=tensor.device)
        slots = int((tensor == filler).all(-1).all(1).sum().item())  # of [rows, slots]
        total += slots * tensor.shape[1] * tensor.shape[3] * tensor.element_size()
    return total


def written_slots(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Count slots of [rows, kv_heads, slots, head_dim] tensors that lost the filler value.

    Looks at a few numbers per slot, layer and K or V.

    Raises:
        RuntimeError: layers disagree.
    """
    counts = set()
    for pair in layers:
        for tensor in pair:
            filler = torch.tensor(UNWRITTEN, dtype=tensor.dtype, device=tensor.device)
            changed = (tensor[:, 0, :, :_WITNESS_DIMS] != filler).any(-1)
            counts.add(int(changed.sum().item()))
    if len(counts) != 1:
        raise RuntimeError(f"layers disagree on written slots: {sorted(counts)}")
    return counts.pop()


def _monotonic(run: ArmRun) -> int:
    """Monotonic nanoseconds once the device is idle."""
    run.synchronize()
    return time.monotonic_ns()
