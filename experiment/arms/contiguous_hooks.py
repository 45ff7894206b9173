"""Hooks called by ``generate`` after each token: progress of requests, and logged steps.

generate ─► token of each row ─► hook ─► stop rule of all arms
└────► StepPlan of a contiguous policy, in the log
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteria

from experiment.arms.base import ArmRun
from experiment.events import WorkloadRequest
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.request_times import RequestProgress
from kvsim.contiguous.planners import GrowingPlanner, StaticBatchPlanner
from kvsim.core.step import FinishReason, StepPlan

# Fills unwritten slots, so that written ones can be counted. Transformers reads every slot of a
# static cache and masks unwritten ones, which would propagate NaN. This number is finite, exact in
# every dtype, and not a key that a model computes.
UNWRITTEN = -0.123046875
_WITNESS_DIMS = 4


@dataclass(slots=True)
class _RowProgress(RequestProgress):
    tokens: list[int] = field(default_factory=list)
    reason: FinishReason | None = None


class Hook(StoppingCriteria):  # type: ignore[misc]
    """Called by ``generate`` after each token: updates progress and logs the step."""

    def __init__(
        self,
        run: ArmRun,
        clock: ArrivalClock,
        planner: GrowingPlanner | StaticBatchPlanner,
        batch: Sequence[WorkloadRequest],
        waiting: int,
    ) -> None:
        self.run = run
        self.clock = clock
        self.planner = planner
        self.waiting = waiting
        self.rows = [_RowProgress(request) for request in batch]
        self.stops = {*run.task.workload.sampling.stop_token_ids, *run.task.eos_token_ids}
        self.step_began = 0
        self._finished: list[tuple[int, FinishReason]] = []  # since the last plan

    def begin(self) -> None:
        """Start the batch."""
        self.run.synchronize()
        self.step_began = self.run.now()
        for row in self.rows:
            row.begin(self.step_began)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002
        """Process the newest token of each row; return bool [rows], true for finished requests."""
        # Transformers may detect the end a step late (5.23, DeferredStopCheck): ignore that step.
        if all(row.reason is not None for row in self.rows):
            return torch.ones(len(input_ids), dtype=torch.bool, device=input_ids.device)
        # Synchronises with the device. Rows that fill up the batch come last.
        last = input_ids[: len(self.rows), -1].tolist()
        now = self.run.now()
        with self.run.paused():
            self.log_step()
            self.clock.tick()
            for row, token in zip(self.rows, last, strict=True):
                self._take(row, token, now)
        self.step_began = self.run.now()
        done = [row.reason is not None for row in self.rows]
        done += [True] * (len(input_ids) - len(done))
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)

    def log_step(self) -> None:
        """Log the prompt first, then one token of each row, finished rows included."""
        if self.rows[0].tokens:
            plan = self.planner.decode(self._finished, self.waiting)
            self._finished = []
        else:
            plan = self.first_plan()
        self._log(plan, self.witness)

    def release(self) -> None:
        """Log that the memory of all rows is freed."""
        plan = self.planner.release(self._finished, self.waiting)
        self.step_began = self.run.now()
        self._log(plan)

    def first_plan(self) -> StepPlan:
        """The plan of the prompts."""
        raise NotImplementedError

    def witness(self) -> int:
        """Number of written slots, from the tensors alone."""
        raise NotImplementedError

    def _log(self, plan: StepPlan, witness: Callable[[], int] | None = None) -> None:
        snapshot = self.run.snapshot(plan.step, self.planner.tables, self.planner.written, witness)
        self.run.step(plan, self.step_began, snapshot)

    def _take(self, row: _RowProgress, token: int, now: int) -> None:
        if row.reason is not None:
            return  # the batch continues for other rows; this output is discarded
        row.tokens.append(token)
        row.sample(now)
        if token in self.stops:
            row.reason = FinishReason.STOP
        elif len(row.tokens) >= row.request.max_new_tokens:
            row.reason = FinishReason.LENGTH
        if row.reason is not None:
            self._finished.append((row.request.id, row.reason))
            row.arrived = self.clock.moment(row.request) if row.request.arrival else None
            self.run.request_finished(row, row.reason, row.tokens, now)


class StaticHook(Hook):
    """Log the steps of a static batch; ``layers`` are its keys and values."""

    planner: StaticBatchPlanner

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]], *about: Any) -> None:
        super().__init__(*about)
        self.layers = layers

    def first_plan(self) -> StepPlan:
        """The padded batch."""
        prompts = [(row.request.id, len(row.request.token_ids)) for row in self.rows]
        return self.planner.start(prompts, self.waiting)

    def witness(self) -> int:
        """Number of slots without the filler value."""
        rows = len(self.rows)
        return written_slots([(keys[:rows], values[:rows]) for keys, values in self.layers])


class GrowingHook(Hook):
    """Log the steps of one prompt's samples in a growing cache, and the bytes that it moves."""

    planner: GrowingPlanner

    def __init__(self, cache: Any, *about: Any) -> None:
        super().__init__(*about)
        self.cache = cache
        self.moved_bytes = self._held_bytes = 0

    def first_plan(self) -> StepPlan:
        """The prompt, once for each sample."""
        prompt = len(self.rows[0].request.token_ids)
        return self.planner.start([row.request.id for row in self.rows], prompt, self.waiting)

    def log_step(self) -> None:
        """Each step reallocates every tensor by concatenation, and copies its content."""
        self.moved_bytes += self._held_bytes
        self._held_bytes = sum(t.nbytes for t in cache_tensors(self.cache))
        super().log_step()

    def release(self) -> None:
        """Log that the cache is freed, and drop it."""
        self.cache = None
        super().release()

    def witness(self) -> int:
        """Number of positions in the cache's tensors, over all rows."""
        keys = self.cache.layers[0].keys
        return int(keys.shape[0] * keys.shape[-2])


def cache_tensors(cache: Any) -> Iterable[torch.Tensor]:
    """Yield keys and values of each initialised layer, each [rows, kv_heads, slots, head_dim]."""
    for layer in cache.layers:
        if layer.is_initialized:
            yield layer.keys
            yield layer.values


def written_slots(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
    """Count slots of [rows, kv_heads, slots, head_dim] tensors without the filler value.

    Reads a few numbers per slot, layer and K or V.

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
