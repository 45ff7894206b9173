"""The model on our paged engine, within the same KV budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from operator import itemgetter

import torch

from experiment.arms.base import ArmRun, StepSnapshot
from experiment.arms.engine_setup import (
    announce_kernel,
    capture_graphs,
    compile_kernel,
    query_heads,
    resolve_kernel,
    warm_up_engine,
)
from experiment.arms.micro_benchmarks import run_micro_benchmarks
from experiment.arms.second_part import run_second_part, sampling_of
from experiment.arms.step_profile import StepProfiler
from experiment.engine.attention.interface import ATTENTION, UnsupportedModelError
from experiment.engine.attention.kernels import warm_up
from experiment.engine.cpu.packed_weights import Packing, pack_weights
from experiment.engine.cuda.triton_support import LayerShape
from experiment.engine.engine import Engine
from experiment.engine.generation import StepOutcome
from experiment.engine.kv_error import measure
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner, plain_logits, probe
from experiment.engine.quantized import KV_DTYPES
from experiment.engine.sampling import InvalidLogitsError
from experiment.events import (
    CacheQuantized,
    DecodeGraphsUsed,
    PrefixCacheUsed,
    TokenMapping,
    WeightsPacked,
    WorkloadRequest,
)
from experiment.model.load import EAGER
from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.request_times import RequestProgress
from kvsim.accounting.ledger import PoolShape
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import Finish, StepPlan

# The walkthrough's example is slightly after the first block boundary.
_MAPPING_OFFSET = 4


def run_paged(run: ArmRun) -> None:
    """Run continuous batching over a pool of fixed-size blocks."""
    _run(run, run.task.workload.block_size)


def run_slabs(run: ArmRun) -> None:
    """Run the same engine with blocks of the maximum length: contiguous, all else equal.

    This arm and the paged one differ only by paging.
    """
    _run(run, run.task.workload.max_length)


def _run(run: ArmRun, block_size: int) -> None:
    run.execute(
        lambda model: _generate(run, model, block_size),
        EAGER if run.task.model.own_attention else ATTENTION,
        lambda model: _check(model, run, block_size),
    )


def _generate(run: ArmRun, model: torch.nn.Module, block_size: int) -> None:
    task, cache = run.task, run.task.cache_geometry
    blocks = cache.blocks_in(task.workload.budget_bytes, block_size)
    limits = _limits(run, block_size)
    kv_dtype = _kv_dtype(run)
    pool = KVPool(
        cache, blocks, block_size, kv_dtype or task.dtype, run.device, limits.host_blocks,
        # Overwriting takes time of this arm only, and is needed only to count slots.
        poison_freed=task.config.run.witness,
    )  # fmt: skip
    shape = PoolShape(
        blocks, block_size, cache.bytes_per_token, limits.watermark_blocks,
        scale_bytes=cache.scales_per_block,
    )  # fmt: skip
    tensors = pool.tensors
    name = task.config.cache.kv_dtype if kv_dtype else None
    run.pool_reserved(shape, lambda: tensors, pool.poisoned_bytes, name)
    kernel, reason = resolve_kernel(run, _shape(run, model, block_size))
    runner = ModelRunner(model, pool, kernel)
    announce_kernel(run, kernel, reason)
    compile_kernel(model, runner, kernel)
    capture_graphs(run, runner, kernel)

    def new_engine() -> Engine:
        vocabulary, length = task.model.vocab_size, task.workload.max_length
        return Engine(runner, limits, task.eos_token_ids, vocabulary, length)

    with _valid_logits(run):
        warm_up_engine(run, runner, limits)
        for repeat in run.measured():
            if repeat:
                pool.poison(range(blocks))  # a new engine has an empty prefix cache
            run_micro_benchmarks(run, model, kernel)
            engine = new_engine()
            _EngineLoop(run, engine).run_all()
            if limits.prefix_caching:
                run.emit(PrefixCacheUsed(arm=task.arm, **asdict(engine.scheduler.stats)))
        if runner.graphs is not None:
            run.emit(DecodeGraphsUsed(arm=task.arm, **asdict(runner.graphs.counts)))
        run_second_part(run, new_engine())


def _check(model: torch.nn.Module, run: ArmRun, block_size: int) -> None:
    """Pack the weights, probe the model, and measure the accuracy of a quantized cache."""
    task, kv_dtype = run.task, _kv_dtype(run)
    try:
        # Before packing: wrongly packed weights must not be compared with themselves.
        expected = plain_logits(model)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:
        expected = None  # the probe reports what is wrong with the model
    else:
        asked = task.config.engine.packed_weights
        done = pack_weights(model) if asked else Packing(reason=message("packing.off"))
        run.emit(WeightsPacked(arm=task.arm, **asdict(done)))
    kernel, _ = resolve_kernel(run, _shape(run, model, block_size))
    warm_up(kernel, run.device, task.dtype, kv_dtype)
    try:
        with _valid_logits(run):
            probe(model, task.geometry, kernel=kernel, expected=expected)
    except UnsupportedModelError as error:
        raise error.refusal(task.model.name) from error
    if kv_dtype is not None:
        _measure_kv_error(model, run, block_size, kv_dtype, kernel)


def _measure_kv_error(
    model: torch.nn.Module, run: ArmRun, block_size: int, dtype: torch.dtype, kernel: str
) -> None:
    task = run.task
    request = max(task.workload.requests, key=lambda each: len(each.token_ids))
    plain, cache, budget = task.geometry, task.cache_geometry, task.workload.budget_bytes
    error = measure(
        model, plain, cache, dtype, block_size, kernel, request.token_ids, request.max_new_tokens
    )
    run.emit(
        CacheQuantized(
            arm=task.arm,
            kv_dtype=task.config.cache.kv_dtype,
            block_size=block_size,
            block_bytes=cache.block_bytes(block_size),
            plain_block_bytes=plain.block_bytes(block_size),
            blocks=cache.blocks_in(budget, block_size),
            plain_blocks=plain.blocks_in(budget, block_size),
            request=request.id,
            **asdict(error),
        )
    )


def _kv_dtype(run: ArmRun) -> torch.dtype | None:
    """Dtype of the cache if it is not the model's."""
    return KV_DTYPES.get(run.task.config.cache.kv_dtype)


@contextmanager
def _valid_logits(run: ArmRun) -> Iterator[None]:
    """Report invalid logits as an error of the model.

    Raises:
        UserError: no token can be chosen from the logits.
    """
    try:
        yield
    except InvalidLogitsError as error:
        model = run.task.model
        raise user_error("error.model_logits", model=model.name, dtype=model.dtype) from error


def _shape(run: ArmRun, model: torch.nn.Module, block_size: int) -> LayerShape:
    plain = run.task.geometry
    heads = query_heads(model, plain.kv_heads)
    return LayerShape(
        heads, plain.kv_heads, plain.head_dim, block_size, run.task.dtype, _kv_dtype(run)
    )


def _limits(run: ArmRun, block_size: int) -> SchedulerConfig:
    config = run.task.config
    return SchedulerConfig(
        **config.engine.scheduling(),
        host_blocks=run.task.cache_geometry.blocks_in(config.engine.swap_space, block_size),
        watermark_blocks=config.cache.watermark_for(block_size, run.task.workload.max_length),
    )


class _EngineLoop:
    """Submits the workload to the engine and logs its steps."""

    def __init__(self, run: ArmRun, engine: Engine) -> None:
        self.run = run
        self.engine = engine
        self.profiler = StepProfiler(run)
        self.requests = {one.id: RequestProgress(one) for one in run.task.workload.requests}
        self.next_step = 0
        self.coming = deque(run.task.workload.samples())
        self.mapping = self._mapping_example()

    def run_all(self) -> None:
        """Run the workload to its end."""
        if not any(samples[0].arrival for samples in self.coming):
            while self.coming:
                self._add(self.coming.popleft())
        self.run.begin_generation()
        clock = self.run.arrivals()
        try:
            self._admit_arrived(clock)
            while self.engine.scheduler.has_work:
                self._step(clock)
                self._admit_arrived(clock)
        finally:
            with self.run.paused():
                self.profiler.finish()

    def _admit_arrived(self, clock: ArrivalClock) -> None:
        """Submit arrived requests; if idle, block until the next arrival."""
        idle = not self.engine.scheduler.has_work
        for samples, moment in clock.admit(self.coming, itemgetter(0), idle):
            for request in samples:
                one = self.requests[request.id]
                one.arrived, one.arrival_step = moment, self.next_step
            self._add(samples)

    def _add(self, samples: Sequence[WorkloadRequest]) -> None:
        first, *others = samples
        asked = self.run.task.workload.sampling
        request = first.id, first.token_ids, first.max_new_tokens
        if asked.beam_width > 1:
            search = asked.beam_width, asked.stop_token_ids
            self.engine.add_beam_search(*request, *search, priority=first.priority)
        else:
            sampling, children = sampling_of(asked, first.id), [one.id for one in others]
            self.engine.add(*request, sampling, children=children, priority=first.priority)

    def _step(self, arrivals: ArrivalClock) -> None:
        clock = self.run.now()
        with self.profiler.step():
            outcome = self.engine.execute()
            self.run.synchronize()
        self.next_step = outcome.plan.step + 1
        if outcome.plan.chunks:
            arrivals.tick()
        with self.run.paused():
            snapshot, mapping = self._snapshot(outcome), self._mapped(outcome.plan)
        finished = self.engine.complete(outcome)
        now = self.run.now()
        with self.run.paused():
            self.run.step(outcome.plan, clock, snapshot, first_tokens=len(outcome.forked))
            if mapping is not None:
                self.run.emit(mapping)
            self.profiler.after(outcome.plan)
            self._log_requests(outcome, finished, clock, now)

    def _snapshot(self, outcome: StepOutcome) -> StepSnapshot:
        """Before completion, while tables and tensors are in the state of the plan."""
        plan = outcome.plan
        written = {chunk.request: chunk.start + chunk.count for chunk in plan.chunks}
        return self.run.snapshot(
            plan.step,
            self._tables,
            lambda: {**self.engine.scheduler.computed(), **written},
            self.engine.pool.written_slots,
        )

    def _log_requests(
        self, outcome: StepOutcome, finished: tuple[Finish, ...], clock: int, now: int
    ) -> None:
        chunks = outcome.plan.chunks
        for request in (chunk.request for chunk in chunks if chunk.request in self.requests):
            self.requests[request].begin(clock)
        for child, parent in outcome.forked.items():
            if child in self.requests:
                self.requests[child].started = self.requests[parent].started
        for request in (*outcome.tokens, *(c.request for c in chunks if c.samples)):
            if request in self.requests:
                self.requests[request].sample(now, outcome.plan.step)
        for finish in finished:
            tokens = self.engine.generated(finish.request)
            self.run.request_finished(self.requests[finish.request], finish.reason, tokens, now)
        scheduler = self.engine.scheduler
        if finished and not (scheduler.running or scheduler.waiting or self.coming):
            self.run.end_generation()

    def _tables(self) -> dict[int, list[int]]:
        blocks = self.engine.blocks
        return {request: list(blocks.table(request)) for request in blocks.owners}

    def _mapping_example(self) -> tuple[int, int]:
        """(request, position) whose physical slot is reported once it is written."""
        first = next(iter(self.requests.values())).request
        last = final_tokens(len(first.token_ids), first.max_new_tokens) - 1
        return first.id, min(self.engine.blocks.block_size + _MAPPING_OFFSET, last)

    def _mapped(self, plan: StepPlan) -> TokenMapping | None:
        """Physical slot of the example, in the step that writes it."""
        if self.engine.blocks.block_size >= self.run.task.workload.max_length:
            return None  # a slab has nothing to map
        request, position = self.mapping
        for chunk in plan.chunks:
            if chunk.request == request and chunk.start <= position < chunk.start + chunk.count:
                place = self.engine.blocks.locate(request, position)
                return TokenMapping(
                    arm=self.run.task.arm,
                    step=plan.step,
                    request=request,
                    position=position,
                    logical=place.logical,
                    physical=place.physical,
                    offset=place.offset,
                )
        return None
