"""Transformers' own continuous batching: its scheduler, its paged cache, its attention.

    [ trash | trash | block 0 | block 1 | ... ]     one tensor; the trash takes what padding writes

Everything that Transformers would infer from the machine is set: page size, blocks, tokens of a
batch, no switch to another attention, no batch in flight while the next one is decided. Its loop
is stepped here rather than in its background thread, so that nothing runs while memory is read.
Follows Transformers 5.23, ``generation/continuous_batching``.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from experiment.arms.arrivals import clock_of
from experiment.arms.base import ArmRun
from experiment.arrival_clock import ArrivalClock
from experiment.messages import user_error
from experiment.request_times import Progressing
from experiment.workload import TRASH_BLOCKS
from kvsim.ledger import PoolShape
from kvsim.observed import Decision, ScheduleTrace
from kvsim.step import Chunk, FinishReason, StepPlan

ATTENTION = "sdpa"


def run_transformers_paged(run: ArmRun) -> None:
    """All requests through Transformers' continuous batching, in blocks of the workload's size."""
    model: Any = run.load(ATTENTION)
    manager = _start(run, model)
    for _ in run.repeats():
        _Loop(run, manager).run_all()
    del manager
    del model
    run.finish()


def _start(run: ArmRun, model: Any) -> Any:
    """A manager whose cache is reserved; it starts no thread.

    Raises:
        UserError: the cache is laid out in a way that cannot be told.
    """
    task = run.task
    size = task.workload.block_size
    blocks = task.geometry.blocks_in(task.workload.budget_bytes, size) - TRASH_BLOCKS
    limits = task.config.engine
    batching = ContinuousBatchingConfig(
        page_size=size,
        num_blocks=blocks,
        max_batch_tokens=limits.max_num_batched_tokens,
        max_requests_per_batch=limits.max_num_seqs,
        allow_block_sharing=False,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(generation, continuous_batching_config=batching)
    manager.batch_processor = manager._create_batch_processor()
    cache = manager.batch_processor.cache
    allocators = list(cache.cache_allocators.values())
    if len(allocators) != 1 or allocators[0].bytes_per_block != cache.bytes_per_sector:
        raise user_error("error.transformers_paged_layout")
    slot_bytes = task.geometry.bytes_per_token
    shape = PoolShape(blocks + TRASH_BLOCKS, size, slot_bytes, engine_blocks=TRASH_BLOCKS)
    tensors = [cache.cache_tensor]
    run.pool_reserved(shape, lambda: tensors)
    return manager


@dataclass(slots=True)
class _Progress(Progressing):
    """One request; ``state`` is Transformers' own record of it."""

    state: Any = None


@dataclass(slots=True)
class _Seen:
    """What was decided for a step."""

    plan: StepPlan
    tables: dict[int, list[int]] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)


class _Loop:
    """Feeds the workload to the manager's processor, step by step."""

    def __init__(self, run: ArmRun, manager: Any) -> None:
        self.run = run
        self.manager = manager
        self.processor = manager.batch_processor
        self.allocator = next(iter(self.processor.cache.cache_allocators.values()))
        self.requests = {request.id: _Progress(request) for request in run.task.workload.requests}
        self.trace = ScheduleTrace(run.task.workload.block_size)
        self.held: set[int] = set()
        self.ended: set[int] = set()
        self.coming = deque(self.requests.values())
        config = run.task.config.workload
        self.eos = None if config.ignore_eos else run.task.model.eos_token_id

    def run_all(self) -> None:
        """Run the workload to its end."""
        if not any(one.request.arrival for one in self.coming):
            while self.coming:
                self._add(self.coming.popleft())
        self.run.begin_generation()
        arrivals = clock_of(self.run)
        while len(self.ended) < len(self.requests):
            self._admit_arrived(arrivals)
            began_ns, clock = time.monotonic_ns(), self.run.now()
            if not self.processor.prepare_next_batch():
                raise RuntimeError("continuous batching has nothing to do and requests are left")
            with self.run.paused():
                seen = self._look()
            self.manager._generation_step()
            self.processor.update_batch()
            self.run.synchronize()
            now = self.run.now()
            if seen.plan.chunks:
                arrivals.tick()
            with self.run.paused():
                self._log(seen, began_ns)
                self._take(seen.plan, clock, now)
        release = self.trace.release()
        self.run.step(release, time.monotonic_ns(), dict, dict)

    def _admit_arrived(self, arrivals: ArrivalClock) -> None:
        """Hand over who has arrived; where nobody is left to be served, wait for the next one."""
        idle = len(self.requests) == len(self.coming) + len(self.ended)
        for one, moment in arrivals.admit(self.coming, attrgetter("request"), idle):
            one.arrived, one.arrival_step = moment, self.trace.step
            self._add(one)

    def _add(self, one: _Progress) -> None:
        self.manager.add_request(
            one.request.token_ids,
            request_id=str(one.request.id),
            max_new_tokens=one.request.max_new_tokens,
            eos_token_id=-1 if self.eos is None else self.eos,
        )

    def _log(self, seen: _Seen, began_ns: int) -> None:
        self.run.step(seen.plan, began_ns, lambda: seen.tables, lambda: seen.written)

    def _look(self) -> _Seen:
        """The decision that has just been made, by the block tables and the batch."""
        tables = {
            int(name): list(table)  # numbered from the start of the tensor, behind the trash
            for name, table in self.allocator.block_table.items()
            if table
        }
        chunks = []
        for future in self.processor.inputs_and_outputs.requests_in_batch:
            request, end = int(future.state.request_id), future.state.position_offset
            count = future.query_length
            chunks.append(Chunk(request, end - count, count, future.has_new_token))
            self.requests[request].state = future.state
        preempted = tuple(sorted(self.held - tables.keys() - self.ended))
        self.held = set(tables)
        waiting = len(self.processor.scheduler.waiting_requests)
        plan = self.trace.plan(Decision(tables, preempted, tuple(chunks), waiting))
        active = self.processor.scheduler.active_requests
        written = {request: active[str(request)].position_offset for request in tables}
        return _Seen(plan, tables, written)

    def _take(self, plan: StepPlan, clock: int, now: int) -> None:
        """Note first tokens and log the requests that have ended."""
        done = []
        for chunk in plan.chunks:
            one = self.requests[chunk.request]
            one.started = clock if one.started is None else one.started
            if chunk.samples and one.first_token is None:
                one.first_token, one.first_token_step = now, plan.step
            if one.state.status.name == "FINISHED":
                done.append(one)
        for one in done:
            self.ended.add(one.request.id)
            tokens = list(one.state.to_generation_output().generated_tokens)
            stopped = self.eos is not None and tokens[-1:] == [self.eos]
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            self.trace.finished(one.request.id, reason)
            if len(self.ended) == len(self.requests):
                self.run.end_generation()
            times = one.ended(now, unseen=clock)
            self.run.request_finished(one.request, reason.value, tokens, times)
