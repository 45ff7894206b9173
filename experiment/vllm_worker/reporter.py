"""Events of the vLLM worker: readings, requests, steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from experiment.events import (
    Channel,
    Keyframe,
    PoolReserved,
    Progress,
    Reading,
    Scope,
    Stage,
    StageEntered,
    Step,
    TurnAwaited,
)
from experiment.events.arm_clock import Clock
from experiment.events.pace import MAX_REQUEST_MARKS
from experiment.process.wire import Wire
from experiment.text.messages import Message, message
from experiment.vllm_worker.task import VllmTask
from experiment.workload.request_times import RequestProgress
from kvsim.core.step import FinishReason, StepPlan
from kvsim.sizing.vllm_capacity import NULL_BLOCKS

Ranks = Callable[[], list[dict[str, Any]]]
_SPINS_S = 1.2  # SpinCondition of vLLM 0.32 spins for one


class Reporter:
    """Emits the arm's events, off its clock.

    ``ranks`` queries the report of every rank; None until the weights are loaded.
    """

    def __init__(self, wire: Wire, task: VllmTask, decode: Callable[[list[int]], str]) -> None:
        self.clock = Clock()
        self.task = task
        self.ranks: Ranks | None = None
        self._wire = wire
        self._decode = decode
        self._began = 0
        self._last_step: int | None = None
        self.repeat = 0  # memory is read in the first one only
        self._marks = 0
        self._done = 0

    def emit(self, event: Any) -> None:
        """Emit any event."""
        with self.clock.paused():
            self._wire.emit(event)

    def progress(self, key: str, done: float = 0, total: float | None = None) -> None:
        """Report progress."""
        self.emit(Progress(task=message(key), done=done, total=total))

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Wait until the runner has read its channels."""
        with self.clock.paused():
            for reading in self._readings(stage, request):
                self._wire.emit(reading)
            self._wire.mark(
                StageEntered(arm=self.task.arm, stage=stage, step=self._last_step, request=request)
            )

    def await_turn(self) -> None:
        """Wait until the next repeat may begin.

        vLLM's workers poll for the next step and sleep only a second after the last one. Until then
        they would occupy a core during another arm's turn.
        """
        with self.clock.paused():
            time.sleep(_SPINS_S)
            self._wire.mark(TurnAwaited(arm=self.task.arm, repeat=self.repeat))

    def pool(self, blocks: int, block_size: int, watermark: float) -> None:
        """Report the cache, with its bytes from every rank, and mark CACHE_READY.

        ``watermark`` is the share of blocks that vLLM withholds from waiting requests.
        """
        task = self.task
        size = blocks * block_size * task.model.slot_bytes
        self.emit(
            PoolReserved(
                arm=task.arm,
                blocks=blocks,
                block_size=block_size,
                slot_bytes=task.model.slot_bytes,
                watermark_blocks=int(watermark * blocks),
                engine_blocks=NULL_BLOCKS,
                tensor_bytes=self._kv_bytes(),
                budget_bytes=task.workload.budget_bytes,
            )
        )
        self.emit(self._reading(Channel.FORMULA, Scope.TENSOR, size, None, Stage.CACHE_READY))
        self.mark(Stage.CACHE_READY)

    def begin(self) -> None:
        """Start the clock of the workload."""
        self._done = 0
        self._began = self.clock.now()

    def generated_s(self) -> float:
        """Seconds since the workload began."""
        return (self.clock.now() - self._began) / 1e9

    def step(self, plan: StepPlan, ended_ns: int, took: int) -> None:
        """Log an executed step and its duration on the arm's clock in nanoseconds."""
        self.emit(
            Step(
                t_ns=ended_ns,
                arm=self.task.arm,
                plan=plan,
                started_ns=ended_ns - took,
            )
        )
        self._last_step = plan.step
        self._done += sum(chunk.samples for chunk in plan.chunks)
        total = sum(request.max_new_tokens for request in self.task.workload.requests)
        self.progress("progress.generate", self._done, total)

    def keyframe(self, step: int, tables: dict[int, list[int]], written: dict[int, int]) -> None:
        """Log block tables and written slots, to check the replay of the plans."""
        self.emit(Keyframe(arm=self.task.arm, step=step, tables=tables, written=written))

    def finished(self, one: RequestProgress, reason: FinishReason, tokens: list[int]) -> None:
        """Log the end of a request and mark REQUEST_DONE."""
        now = self.clock.now()
        with self.clock.paused():
            text, step = self._decode(tokens), self._last_step
            self._wire.emit(
                one.finished(now, self.task.arm, step, reason.value, tokens, text, self._began)
            )
        if not self.repeat and self._marks < MAX_REQUEST_MARKS:
            self._marks += 1
            self.mark(Stage.REQUEST_DONE, one.request.id)

    def _readings(self, stage: Stage, request: int | None) -> list[Reading]:
        """torch's counters of the ranks; those of this process are always zero."""
        reports = self.ranks() if self.ranks else []
        readings = []
        for channel, key in (
            (Channel.TORCH_ALLOCATED, "torch_allocated"),
            (Channel.TORCH_RESERVED, "torch_reserved"),
        ):
            sizes = [report[key] for report in reports if report[key] is not None]
            known = bool(sizes) and len(sizes) == len(reports)
            reason = None if known else self._no_counters()
            size = sum(sizes) if known else None
            readings.append(self._reading(channel, Scope.TREE, size, reason, stage, request))
        if stage not in (Stage.START, Stage.LOADED):
            size = self._kv_bytes() if self.ranks else 0
            readings.append(
                self._reading(Channel.TENSORS, Scope.TENSOR, size, None, stage, request)
            )
        return readings

    def _no_counters(self) -> Message:
        key = "memory.torch_cpu" if self.task.device == "cpu" else "memory.torch_elsewhere"
        return message(key)

    def _kv_bytes(self) -> int:
        assert self.ranks is not None
        return sum(report["kv_bytes"] for report in self.ranks())

    def _reading(
        self,
        channel: Channel,
        scope: Scope,
        size: int | None,
        reason: Message | None,
        stage: Stage,
        request: int | None = None,
    ) -> Reading:
        return Reading(
            arm=self.task.arm,
            channel=channel,
            scope=scope,
            bytes=size,
            reason=reason,
            stage=stage,
            request=request,
            device=self.task.device,
        )
