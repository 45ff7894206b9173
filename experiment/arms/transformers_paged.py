"""Transformers' continuous batching: its scheduler, paged cache and attention.

    [ trash | trash | block 0 | block 1 | ... ]     one tensor; padding writes into the trash

Everything that Transformers would infer from the machine is set: page size, blocks, tokens of a
batch, no other attention, no asynchronous batching. Its loop is stepped here instead of in its
background thread, so that it is idle while memory is read. With ``engine.prefix_caching`` requests
share full blocks. Hits are derived from the starts of first chunks, cached blocks from its own
ledger. Samples of a prompt are its forks, which diverge before the last token of the prompt. They
share full blocks, and each but the first copies the last block at once. Forking requires the prefix
cache, so it is enabled with them. Follows Transformers 5.23, ``generation/continuous_batching``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from experiment.arms.base import ArmRun, first_token
from experiment.arms.sampling_arguments import sampling_arguments
from experiment.events import (
    Channel,
    PrefixCacheUsed,
    Reading,
    Scope,
    Stage,
    WorkloadRequest,
)
from experiment.memory.tensors import storage_bytes
from experiment.text.errors import user_error
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.first_prompts import NEW_TOKENS, first_prompts
from experiment.workload.request_times import RequestProgress
from experiment.workload.requests import TRASH_BLOCKS
from kvsim.accounting.ledger import PoolShape
from kvsim.core.observed import Decision, ScheduleTrace
from kvsim.core.prefix import PrefixStats
from kvsim.core.step import Chunk, FinishReason, OpKind, StepPlan

_CHILD = "__child#"  # in Transformers' name of a forked sample, before its number


def run_transformers_paged(run: ArmRun) -> None:
    """Run all requests through Transformers' continuous batching."""
    run.execute(lambda model: _generate(run, model), check=partial(_prepare, run))


def _prepare(run: ArmRun, model: torch.nn.Module) -> None:
    """Compute a first token; on a GPU create torch's streams.

    Batching takes one of them, and torch creates all 32 with the first, in memory of the driver.
    They must be there at LOADED, or they count as cache.
    """
    first_token(model)
    if run.device.type == "cuda":
        cuda: Any = torch.cuda  # torch has no types for some of these
        cuda.Stream(run.device)


def _generate(run: ArmRun, model: Any) -> None:
    manager = _start(run, model)
    if run.has_warm_up:
        _warm_up(run, manager)
    for _ in run.measured():
        if _shares(run):  # blocks cached by an earlier repeat
            manager.batch_processor.cache.evict_cached_blocks()
        loop = _BatchingLoop(run, manager)
        loop.run_all()
        if _shares(run):
            run.emit(PrefixCacheUsed(arm=run.task.arm, **asdict(loop.prefix.stats)))


def _forks(run: ArmRun) -> int:
    """Number of forked samples per prompt; identical greedy samples are separate requests."""
    sampling = run.task.workload.sampling
    return 1 if sampling.greedy else sampling.n


def _shares(run: ArmRun) -> bool:
    return run.task.config.engine.prefix_caching or _forks(run) > 1


def _names(requests: Sequence[WorkloadRequest], forks: bool) -> dict[int, str]:
    return {
        one.id: f"{one.sample_of}{_CHILD}{one.id - one.sample_of - 1}"
        if forks and one.sample_of is not None
        else str(one.id)
        for one in requests
    }


def _start(run: ArmRun, model: Any) -> Any:
    """Create a manager with a reserved cache; it starts no thread.

    Raises:
        UserError: the layout of the cache is unknown.
    """
    # Imported late: if Transformers moves it, only this arm fails.
    from transformers import ContinuousBatchingConfig, GenerationConfig

    task = run.task
    size = task.workload.block_size
    blocks = task.geometry.blocks_in(task.workload.budget_bytes, size) - TRASH_BLOCKS
    limits = task.config.engine
    batching = ContinuousBatchingConfig(
        page_size=size,
        num_blocks=blocks,
        max_batch_tokens=limits.max_num_batched_tokens,
        max_requests_per_batch=limits.max_num_seqs,
        allow_block_sharing=_shares(run),
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
    )
    generation = GenerationConfig(
        eos_token_id=-1, pad_token_id=0, num_return_sequences=_forks(run),
        **sampling_arguments(task.workload.sampling, (), 0),
    )  # fmt: skip
    manager = model.init_continuous_batching(generation, continuous_batching_config=batching)
    manager.batch_processor = manager._create_batch_processor()
    cache = manager.batch_processor.cache
    allocators = list(cache.cache_allocators.values())
    if len(allocators) != 1 or allocators[0].bytes_per_block != cache.bytes_per_sector:
        raise user_error("error.transformers_paged_layout")
    slot_bytes = task.geometry.bytes_per_token
    shape = PoolShape(blocks + TRASH_BLOCKS, size, slot_bytes, engine_blocks=TRASH_BLOCKS)
    tensors = [cache.cache_tensor]
    if run.device.type == "cuda":  # on a CPU most of them are never touched
        run.emit(_static_inputs(task.arm, manager.batch_processor))
    run.pool_reserved(shape, lambda: tensors)
    return manager


def _static_inputs(arm: str, processor: Any) -> Reading:
    """Bytes of Transformers' static inputs, mainly its attention mask, which it reserves at once.

    Transformers 5.23, ``ContinuousBatchingIOs._setup_static_tensors``.
    """
    found = vars(processor.inputs_and_outputs).values()
    nested = [each.values() if isinstance(each, dict) else (each,) for each in found]
    size = storage_bytes(each for some in nested for each in some if isinstance(each, Tensor))
    return Reading(
        arm=arm, channel=Channel.STATIC_INPUTS, scope=Scope.TENSOR, bytes=size,
        stage=Stage.CACHE_READY,
    )  # fmt: skip


def _warm_up(run: ArmRun, manager: Any) -> None:
    """Warm up with first prompts and decode steps, then reset the cache."""
    limit = run.task.config.engine.max_num_batched_tokens
    prompts, processor = first_prompts(run.task.workload, limit), manager.batch_processor
    with run.recorded_warm_up(prompts):
        for number, length in enumerate(prompts):
            name = f"first {number}"
            manager.add_request([0] * length, request_id=name, max_new_tokens=NEW_TOKENS)
        while processor.prepare_next_batch():
            manager._generation_step()
            processor.update_batch()
        run.synchronize()
        processor.reset()
        processor.cache.reset()


@dataclass(slots=True)
class _TrackedRequest(RequestProgress):
    """A request; ``state`` is Transformers' own record of it."""

    state: Any = None


@dataclass(slots=True)
class _Prefix:
    """Prefix-cache statistics, counted when requests are admitted."""

    block_size: int
    stats: PrefixStats = field(default_factory=PrefixStats)
    writers: dict[int, int] = field(default_factory=dict)
    admitted: set[int] = field(default_factory=set)

    def take(self, plan: StepPlan, asked: dict[int, int], forked: Collection[int]) -> None:
        """Count the hits of requests admitted in this plan.

        Args:
            asked: number of known tokens of each request.
            forked: other new requests, which query nothing.
        """
        shared = {op.request: op.blocks for op in plan.ops if op.kind is OpKind.SHARE}
        for request, tokens in asked.items():
            blocks = shared.get(request, ())
            if request in self.admitted:
                own = sum(self.writers[block] == request for block in blocks)
                self.stats.requeried += tokens
                self.stats.hit_own += own * self.block_size
                self.stats.hit_again += (len(blocks) - own) * self.block_size
            else:
                self.stats.queried += tokens
                self.stats.hit_cross += len(blocks) * self.block_size
        self.admitted.update(asked, forked)
        for op in plan.ops:
            if op.kind in (OpKind.ALLOCATE, OpKind.COPY) and op.request is not None:
                self.writers.update(dict.fromkeys(op.blocks, op.request))


class _BatchingLoop:
    """Submits the workload to the manager's processor, step by step."""

    def __init__(self, run: ArmRun, manager: Any) -> None:
        self.run = run
        self.manager = manager
        self.processor = manager.batch_processor
        self.allocator = next(iter(self.processor.cache.cache_allocators.values()))
        self.requests = {
            request.id: _TrackedRequest(request) for request in run.task.workload.requests
        }
        size = run.task.workload.block_size
        sharing = _shares(run)
        self.cached = self.allocator.ledger.cached_blocks if sharing else {}
        self.trace = ScheduleTrace(size, self.cached.__contains__ if sharing else None)
        self.names = _names(run.task.workload.requests, _forks(run) > 1)
        self.ids = {name: request for request, name in self.names.items()}
        self.prefix = _Prefix(size)
        self.kept: set[int] = set()
        # Block tables and written tokens after the present step.
        self.tables: dict[int, list[int]] = {}
        self.written: dict[int, int] = {}
        self.ended: set[int] = set()
        self.coming = deque(self.requests.values())

    def run_all(self) -> None:
        """Run the workload to its end."""
        if not any(one.request.arrival for one in self.coming):
            while self.coming:
                self._add(self.coming.popleft())
        self.run.begin_generation()
        arrivals = self.run.arrivals()
        while len(self.ended) < len(self.requests):
            self._admit_arrived(arrivals)
            clock = self.run.now()
            if not self.processor.prepare_next_batch():
                raise RuntimeError("continuous batching has nothing to do and requests are left")
            with self.run.paused():
                plan = self._observe()
            self.manager._generation_step()
            self.processor.update_batch()
            self.run.synchronize()
            now = self.run.now()
            if plan.chunks:
                arrivals.tick()
            with self.run.paused():
                snapshot = self.run.snapshot(plan.step, lambda: self.tables, lambda: self.written)
                self.run.step(plan, clock, snapshot)
                self._take(plan, clock, now)
        release = self.trace.release()
        self.run.step(release, self.run.now(), self.run.snapshot(release.step, dict, dict))

    def _admit_arrived(self, arrivals: ArrivalClock) -> None:
        """Submit arrived requests; if idle, block until the next arrival."""
        idle = len(self.requests) == len(self.coming) + len(self.ended)
        for one, moment in arrivals.admit(self.coming, attrgetter("request"), idle):
            one.arrived, one.arrival_step = moment, self.trace.step
            self._add(one)

    def _add(self, one: _TrackedRequest) -> None:
        if _CHILD in self.names[one.request.id]:
            return  # forked from its prompt's first sample
        self.manager.add_request(
            one.request.token_ids,
            request_id=self.names[one.request.id],
            max_new_tokens=one.request.max_new_tokens,
            eos_token_id=list(self.run.task.eos_token_ids),
        )

    def _observe(self) -> StepPlan:
        """Derive the scheduling decision from the block tables and the batch."""
        held = self.tables.keys()
        self.tables = tables = {
            self.ids[name]: list(table)  # numbered from the start of the tensor, after the trash
            for name, table in self.allocator.block_table.items()
            if table
        }
        chunks = []
        for future in self.processor.inputs_and_outputs.requests_in_batch:
            request, end = self.ids[future.state.request_id], future.state.position_offset
            count = future.query_length
            chunks.append(Chunk(request, end - count, count, future.has_new_token))
            self.requests[request].state = future.state
        preempted = tuple(sorted(held - tables.keys() - self.ended))
        scheduler = self.processor.scheduler
        states = {request: scheduler.active_requests[self.names[request]] for request in tables}
        self.written = {request: state.position_offset for request, state in states.items()}
        new = tables.keys() - held
        parents = self._parents({r: states[r] for r in new})
        # Cached blocks are assigned before the rest of the prompt, for which there may be no room.
        found = {r: self.written[r] for r in new.difference(chunk.request for chunk in chunks)}
        waiting, evicted = len(scheduler.waiting_requests), self._evicted(tables)
        decision = Decision(tables, preempted, tuple(chunks), waiting, found, evicted, parents)
        plan = self.trace.plan(decision)
        asked = {r: len(states[r].initial_tokens) for r in new if r not in parents}
        self.prefix.take(plan, asked, parents)
        return plan

    def _parents(self, states: dict[int, Any]) -> dict[int, int]:
        """Parents of the new requests that were forked.

        A sample without room for a fork starts from its prompt as a separate request: Transformers
        records its length.
        """
        found = {}
        for request, state in sorted(states.items()):
            first = self.requests[request].request.sample_of
            forked = _CHILD in state.request_id and not state._true_initial_tokens
            if forked and first is not None and request not in self.prefix.admitted:
                found[request] = first
        return found

    def _evicted(self, tables: dict[int, list[int]]) -> list[int]:
        """Blocks that were cached at the last call, and are now neither cached nor held."""
        before, self.kept = self.kept, set(self.cached)
        held = {block for table in tables.values() for block in table}
        return sorted(before - self.kept - held)

    def _take(self, plan: StepPlan, clock: int, now: int) -> None:
        """Record first tokens and log finished requests."""
        done = []
        for chunk in plan.chunks:
            one = self.requests[chunk.request]
            one.begin(clock)
            if chunk.samples:
                one.sample(now, plan.step)
            if one.state.status.name == "FINISHED":
                done.append(one)
        for one in done:
            self.ended.add(one.request.id)
            tokens = list(one.state.to_generation_output().generated_tokens)
            stopped = tokens[-1] in self.run.task.eos_token_ids
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            self.trace.finished(one.request.id, reason)
            if len(self.ended) == len(self.requests):
                self.run.end_generation()
            self.run.request_finished(one, reason, tokens, now)
