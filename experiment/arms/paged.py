"""The same model through our own paged engine, within the same KV budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from operator import itemgetter

import torch

from experiment.arms.arrivals import clock_of
from experiment.arms.asides import measure_asides
from experiment.arms.base import ArmRun, Picture
from experiment.arms.engine_setup import (
    announce_kernel,
    announce_use,
    capture_graphs,
    compile_kernel,
    compute_before,
    kernel_of,
)
from experiment.arms.second_part import run_second_part, sampling_of
from experiment.arms.step_profile import StepProfiler, step_profiler
from experiment.config.kv_dtype import check_kernel
from experiment.engine.attention.interface import ATTENTION, UnsupportedModelError
from experiment.engine.attention.kernels import READS_QUANTIZED, warm_up
from experiment.engine.beam_search import BeamParams
from experiment.engine.cpu.packed_weights import Packing, pack_weights
from experiment.engine.cuda.triton_support import LayerShape
from experiment.engine.engine import Engine, StepOutcome
from experiment.engine.kv_error import measure
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner, plain_logits, probe
from experiment.engine.quantized import KV_DTYPES
from experiment.engine.sampling import InvalidLogitsError
from experiment.events import (
    CacheQuantized,
    PrefixCacheUsed,
    TokenMapping,
    WeightsPacked,
    WorkloadRequest,
)
from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.request_times import RequestTimes
from kvsim.accounting.ledger import PoolShape
from kvsim.core.request import final_tokens
from kvsim.core.scheduler import SchedulerConfig
from kvsim.core.step import Finish, StepPlan

# The walkthrough's example lies a little behind the first block boundary.
_MAPPING_OFFSET = 4


def run_paged(run: ArmRun) -> None:
    """Continuous batching over one pool of fixed-size blocks."""
    _run(run, run.task.workload.block_size)


def run_slabs(run: ArmRun) -> None:
    """The same engine with blocks of the maximum length: contiguous, all else equal.

    What differs between this arm and the paged one is paging alone.
    """
    _run(run, run.task.workload.max_length)


def _run(run: ArmRun, block_size: int) -> None:
    config = run.task.config
    # By name: what auto comes to is found out on the device, and nothing may start it yet.
    if config.engine.kernel != "auto":
        check_kernel(config.cache.kv_dtype, config.engine.kernel, READS_QUANTIZED)
    model = run.load(ATTENTION, lambda model: _check(model, run, block_size))
    _generate(run, model, block_size)
    del model
    run.finish()


def _generate(run: ArmRun, model: torch.nn.Module, block_size: int) -> None:
    task, cache = run.task, run.task.cache_geometry
    blocks = cache.blocks_in(task.workload.budget_bytes, block_size)
    limits = _limits(run, block_size)
    kv_dtype = _kv_dtype(run)
    dtype = kv_dtype or task.dtype
    pool = KVPool(
        cache, blocks, block_size, dtype, run.device, limits.host_blocks,
        # Overwriting takes time of this arm alone, and is of use where slots are counted.
        poison_freed=task.config.run.witness,
    )  # fmt: skip
    shape = PoolShape(
        blocks, block_size, cache.bytes_per_token, limits.watermark_blocks,
        scale_bytes=cache.scales_per_block,
    )  # fmt: skip
    tensors = pool.tensors
    name = task.config.cache.kv_dtype if kv_dtype else None
    run.pool_reserved(shape, lambda: tensors, pool.poisoned_bytes, name)
    layer = _shape(run, model, block_size)
    kernel = _kernel(run, layer)
    runner = ModelRunner(model, pool, kernel)
    announce_kernel(run, kernel, layer)
    compile_kernel(model, runner, kernel)
    capture_graphs(run, runner, kernel)
    with _valid_logits(run):
        compute_before(run, runner, limits)
    vocabulary, length = task.model.vocab_size, task.workload.max_length
    for repeat in run.repeats():
        if repeat:
            pool.poison(range(blocks))  # what the prefix cache kept is known to no new engine
        measure_asides(run, model, kernel)
        engine = Engine(runner, limits, _eos(run), vocabulary, length)
        with step_profiler(run) as profiler:
            _Loop(run, engine, profiler).run_all()
        if limits.prefix_caching:
            stats = engine.scheduler.stats
            run.emit(PrefixCacheUsed(arm=task.arm, **asdict(stats)))
    announce_use(run, runner.graphs)
    with _valid_logits(run):
        run_second_part(run, Engine(runner, limits, _eos(run), vocabulary, length))


def _check(model: torch.nn.Module, run: ArmRun, block_size: int) -> None:
    task = run.task
    try:
        # Before the weights are touched: what was packed wrongly must not be its own measure.
        expected = plain_logits(model)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:
        expected = None  # the probe finds out what is the matter with the model as it is
    else:
        _pack(model, run)
    kernel = _kernel(run, _shape(run, model, block_size))
    warm_up(kernel, run.device, task.dtype, _kv_dtype(run))
    try:
        with _valid_logits(run):
            probe(model, task.geometry, kernel=kernel, expected=expected)
    except UnsupportedModelError as error:
        raise error.refusal(task.model.name) from error
    if _kv_dtype(run) is not None:
        _measure_kv_error(model, run, block_size)


def _pack(model: torch.nn.Module, run: ArmRun) -> None:
    """Bring the weights into oneDNN's order where the config says so; record what came of it."""
    asked = run.task.config.engine.packed_weights
    done = pack_weights(model) if asked else Packing(reason=message("packing.off"))
    run.emit(WeightsPacked(arm=run.task.arm, **done.facts()))


def _measure_kv_error(model: torch.nn.Module, run: ArmRun, block_size: int) -> None:
    """What the cache's precision saves and what it costs, before the arm begins."""
    task, dtype = run.task, _kv_dtype(run)
    assert dtype is not None
    request = max(task.workload.requests, key=lambda each: len(each.token_ids))
    plain, cache, budget = task.geometry, task.cache_geometry, task.workload.budget_bytes
    error = measure(
        model, plain, cache, dtype, block_size, _kernel(run, _shape(run, model, block_size)),
        request.token_ids, request.max_new_tokens,
    )  # fmt: skip
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
    """Precision of the cache where it is not the model's."""
    return KV_DTYPES.get(run.task.config.cache.kv_dtype)


@contextmanager
def _valid_logits(run: ArmRun) -> Iterator[None]:
    """A model whose logits are no numbers is nothing that this program did wrong.

    Raises:
        UserError: no token can be chosen from what the model returned.
    """
    try:
        yield
    except InvalidLogitsError as error:
        model = run.task.model
        raise user_error("error.model_logits", model=model.name, dtype=model.dtype) from error


def _shape(run: ArmRun, model: torch.nn.Module, block_size: int) -> LayerShape:
    plain = run.task.geometry
    heads = getattr(model.config, "num_attention_heads", plain.kv_heads)
    return LayerShape(
        heads, plain.kv_heads, plain.head_dim, block_size, run.task.dtype, _kv_dtype(run)
    )


def _kernel(run: ArmRun, shape: LayerShape) -> str:
    kernel, asked = kernel_of(run, shape), run.task.config.engine.kernel
    if asked == "auto" and _kv_dtype(run) is not None and kernel not in READS_QUANTIZED:
        return "torch"
    return kernel


def _limits(run: ArmRun, block_size: int) -> SchedulerConfig:
    config = run.task.config
    return SchedulerConfig(
        policy=config.engine.policy,
        preemption=config.engine.preemption,
        host_blocks=run.task.cache_geometry.blocks_in(config.engine.swap_space, block_size),
        prefix_caching=config.engine.prefix_caching,
        max_num_seqs=config.engine.max_num_seqs,
        max_num_batched_tokens=config.engine.max_num_batched_tokens,
        long_prefill_token_threshold=config.engine.long_prefill_token_threshold,
        watermark_blocks=config.cache.watermark_for(block_size, run.task.workload.max_length),
    )


def _eos(run: ArmRun) -> int | None:
    return None if run.task.config.workload.ignore_eos else run.task.model.eos_token_id


class _Loop:
    """Feeds the workload to the engine and logs what happens."""

    def __init__(self, run: ArmRun, engine: Engine, profiler: StepProfiler | None) -> None:
        self.run = run
        self.engine = engine
        self.profiler = profiler
        self.requests = {request.id: request for request in run.task.workload.requests}
        self.started: dict[int, int] = {}
        self.first_token: dict[int, int] = {}
        self.arrived: dict[int, tuple[int, int]] = {}  # nanoseconds, and the step planned next
        self.first_step: dict[int, int] = {}
        self.next_step = 0
        self.coming = deque(run.task.workload.samples())
        self.mapping = self._mapping_example()

    def run_all(self) -> None:
        """Run the workload to its end."""
        timed = any(samples[0].arrival for samples in self.coming)
        if not timed:
            while self.coming:
                self._add(self.coming.popleft())
        self.run.begin_generation()
        clock = clock_of(self.run)
        self._admit_arrived(clock)
        while self.engine.scheduler.has_work:
            self._step(clock)
            self._admit_arrived(clock)

    def _admit_arrived(self, clock: ArrivalClock) -> None:
        """Hand over who has arrived; where nobody is left to be served, wait for the next one."""
        idle = not self.engine.scheduler.has_work
        for samples, moment in clock.admit(self.coming, itemgetter(0), idle):
            came = moment, self.next_step
            self.arrived |= dict.fromkeys((request.id for request in samples), came)
            self._add(samples)

    def _add(self, samples: Sequence[WorkloadRequest]) -> None:
        first, *others = samples
        children = [request.id for request in others]
        sampling = sampling_of(self.run.task.workload.sampling, first.id)
        tokens, most = first.token_ids, first.max_new_tokens
        width = self.run.task.workload.sampling.beam_width
        if width > 1:
            params = BeamParams(width, stop_token_ids=sampling.stop_token_ids)
            self.engine.add_beam_search(first.id, tokens, most, params, priority=first.priority)
        else:
            self.engine.add(
                first.id, tokens, most, sampling, children=children, priority=first.priority
            )

    def _step(self, arrivals: ArrivalClock) -> None:
        clock = self.run.now()
        marked = self.profiler.step() if self.profiler else nullcontext()
        with _valid_logits(self.run), marked:
            outcome = self.engine.execute()
            self.run.synchronize()
        self.next_step = outcome.plan.step + 1
        if outcome.plan.chunks:
            arrivals.tick()
        with self.run.paused():
            picture, mapping = self._picture(outcome), self._mapped(outcome.plan)
        finished = self.engine.complete(outcome)
        now = self.run.now()
        with self.run.paused():
            self.run.step(outcome.plan, clock, picture, first_tokens=len(outcome.forked))
            if mapping is not None:
                self.run.emit(mapping)
            if self.profiler:
                self.profiler.after(outcome.plan)
            self._log_requests(outcome, finished, clock, now)

    def _picture(self, outcome: StepOutcome) -> Picture:
        """Before completion, while tables and tensors are as the plan left them."""
        plan = outcome.plan
        written = {chunk.request: chunk.start + chunk.count for chunk in plan.chunks}
        return self.run.picture(
            plan.step,
            self._tables,
            lambda: {**self.engine.scheduler.computed(), **written},
            self.engine.pool.written_slots,
        )

    def _log_requests(
        self, outcome: StepOutcome, finished: tuple[Finish, ...], clock: int, now: int
    ) -> None:
        for chunk in outcome.plan.chunks:
            self.started.setdefault(chunk.request, clock)
        for child, parent in outcome.forked.items():
            self.started[child] = self.started[parent]
        for request in (*outcome.tokens, *(c.request for c in outcome.plan.chunks if c.samples)):
            self.first_token.setdefault(request, now)
            self.first_step.setdefault(request, outcome.plan.step)
        for finish in finished:
            request = finish.request
            times = self._times(request, now)
            tokens = self.engine.generated(request)
            self.run.request_finished(self.requests[request], finish.reason.value, tokens, times)
        scheduler = self.engine.scheduler
        if finished and not (scheduler.running or scheduler.waiting or self.coming):
            self.run.end_generation()

    def _times(self, request: int, now: int) -> RequestTimes:
        started, first = self.started[request], self.first_token.get(request)
        arrived, step = self.arrived.get(request, (None, None))
        return RequestTimes(started, first, now, arrived, step, self.first_step.get(request))

    def _tables(self) -> dict[int, list[int]]:
        blocks = self.engine.blocks
        return {request: list(blocks.table(request)) for request in blocks.owners}

    def _mapping_example(self) -> tuple[int, int]:
        """(request, position) whose place in the pool is shown once it is written."""
        first = next(iter(self.requests.values()))
        last = final_tokens(len(first.token_ids), first.max_new_tokens) - 1
        return first.id, min(self.engine.blocks.block_size + _MAPPING_OFFSET, last)

    def _mapped(self, plan: StepPlan) -> TokenMapping | None:
        """The example's place, in the step that writes it."""
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
