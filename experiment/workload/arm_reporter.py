"""What every arm reports of its stages, steps and requests, and the clock that it keeps.

process starts ─ mark START ─ load model ─ mark LOADED ─ reserve cache ─ mark CACHE_READY
    ─ generate (steps, requests, mark REQUEST_DONE) ─ mark LAST_STEP ─ release ─ mark RELEASED
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.events import (
    ModelPrepared,
    Progress,
    Reading,
    RepeatFinished,
    Stage,
    StageEntered,
    Step,
    TurnAwaited,
    WorkloadReady,
)
from experiment.events.arm_clock import Clock
from experiment.events.pace import MAX_REQUEST_MARKS
from experiment.process.wire import Wire
from experiment.text.messages import message
from experiment.workload.request_times import RequestProgress
from kvsim.core.step import FinishReason, StepPlan


class PreparedTask(BaseModel):
    """The arm and its prepared inputs; ``directory`` holds the weights."""

    model_config = ConfigDict(frozen=True)

    arm: str
    device: str
    directory: str
    model: ModelPrepared
    workload: WorkloadReady


class ArmReporter:
    """Emits an arm's events, off its clock.

    The clock is paused during measurements, so that they do not affect the arm's speed.
    """

    def __init__(self, wire: Wire, task: PreparedTask) -> None:
        self.task = task
        self.clock = Clock()
        self.repeat = 0  # memory is read in the first one only
        self.generate_s = 0.0
        self._wire = wire
        self._began = 0
        self._last_step: int | None = None
        self._marked_requests = 0
        self._tokens_done = 0

    def now(self) -> int:
        """Nanoseconds on the arm's clock, which excludes pauses."""
        return self.clock.now()

    def paused(self) -> AbstractContextManager[None]:
        """Pause the arm's clock during a measurement; may nest."""
        return self.clock.paused()

    def readings(self, stage: Stage, request: int | None) -> list[Reading]:
        """Read the channels that the runner cannot read from outside."""
        raise NotImplementedError

    def text_of(self, tokens: list[int]) -> str:
        """Decode tokens."""
        raise NotImplementedError

    def emit(self, event: Any) -> None:
        """Emit an event."""
        with self.paused():
            self._wire.emit(event)

    def progress(self, key: str, done: float = 0, total: float | None = None) -> None:
        """Report progress."""
        self.emit(Progress(task=message(key), done=done, total=total))

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Read the channels of this arm, then wait until the runner has read its own."""
        with self.paused():
            for reading in self.readings(stage, request):
                self._wire.emit(reading)
            self._wire.mark(
                StageEntered(arm=self.task.arm, stage=stage, step=self._last_step, request=request)
            )

    def repeats(self, measured: int) -> Iterator[int]:
        """Yield the numbers of the repeats, from 0; the first precedes ``measured`` ones.

        In an experiment the first repeat is the warm-up, the others wait for their turn, and the
        end of each is reported. Without measured repeats the workload runs once.
        """
        for self.repeat in range(measured + 1):
            if self.repeat:
                with self.paused():
                    self._await_turn()
            yield self.repeat
            if measured:
                self.emit(
                    RepeatFinished(
                        arm=self.task.arm,
                        repeat=self.repeat,
                        warm_up=self.repeat == 0,
                        generate_s=self.generate_s,
                    )
                )

    def begin_generation(self) -> None:
        """Start the clock of the workload."""
        self._tokens_done = 0
        self._report_tokens()
        self._began = self.now()

    def stop_generation(self) -> None:
        """Set the duration of the workload to the time since its beginning."""
        self.generate_s = (self.now() - self._began) / 1e9

    def log_step(
        self, plan: StepPlan, ended_ns: int, took: int, written_slots: int | None = None,
        first_tokens: int = 0,
    ) -> None:  # fmt: skip
        """Log an executed step.

        Args:
            ended_ns: of the system's monotonic clock.
            took: nanoseconds on the arm's clock.
            written_slots: counted from the tensors.
            first_tokens: of samples that start here, in addition to the tokens of the chunks.
        """
        self.emit(
            Step(
                t_ns=ended_ns,
                arm=self.task.arm,
                plan=plan,
                started_ns=ended_ns - took,
                written_slots=written_slots,
            )
        )
        self._last_step = plan.step
        self._tokens_done += sum(chunk.samples for chunk in plan.chunks) + first_tokens
        self._report_tokens()

    def request_finished(
        self, one: RequestProgress, reason: FinishReason, tokens: list[int], now: int
    ) -> None:
        """Log the end of a request and mark REQUEST_DONE, the latter only in the first repeat.

        Later repeats are timed, and a reading slows down what follows.
        """
        with self.paused():
            text, arm = self.text_of(tokens), self.task.arm
            self._wire.emit(
                one.finished(now, arm, self._last_step, reason.value, tokens, text, self._began)
            )
        if not self.repeat and self._marked_requests < MAX_REQUEST_MARKS:
            self._marked_requests += 1
            self.mark(Stage.REQUEST_DONE, one.request.id)

    def _report_tokens(self) -> None:
        total = sum(request.max_new_tokens for request in self.task.workload.requests)
        self.progress("progress.generate", self._tokens_done, total)

    def _await_turn(self) -> None:
        """Wait until the next repeat may begin."""
        self._wire.mark(TurnAwaited(arm=self.task.arm, repeat=self.repeat))
