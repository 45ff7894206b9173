"""Interface through which arms report stages, pool, steps and requests.

process starts ─ mark START ─ load model ─ mark LOADED ─ reserve cache ─ mark CACHE_READY
    ─ generate (steps, requests, mark REQUEST_DONE) ─ mark LAST_STEP ─ release ─ mark RELEASED
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from experiment.arms.snapshot import StepSnapshot, keyframe_of
from experiment.arms.task import ArmTask
from experiment.events import (
    ArmFinished,
    Channel,
    PoolReserved,
    Progress,
    Reading,
    RepeatFinished,
    Scope,
    Stage,
    StageEntered,
    Step,
    TurnAwaited,
)
from experiment.events.arm_clock import Clock
from experiment.events.pace import MAX_REQUEST_MARKS
from experiment.memory.tensors import (
    reset_torch_peaks,
    slack_reading,
    storage_bytes,
    torch_readings,
    trim,
)
from experiment.model.load import as_text, load_model, optional_tokenizer
from experiment.process.wire import Wire
from experiment.text.messages import message
from experiment.workload.first_prompts import needs_warm_up
from experiment.workload.request_times import RequestProgress
from kvsim.accounting.ledger import PoolShape
from kvsim.core.step import FinishReason, StepPlan


class ArmRun:
    """A running arm: emits its events and keeps its clock.

    The clock is paused during measurements, so that they do not affect the arm's speed.
    """

    def __init__(self, wire: Wire, task: ArmTask, import_s: float) -> None:
        self.task = task
        self._wire = wire
        self._clock = Clock()
        self._import_s = import_s
        self._load_s = 0.0
        self._began = 0
        self._generate_ns = 0
        self._marked_requests = 0
        self._tokens_done = 0
        self._last_step: int | None = None
        self._repeat = 0
        self._kv_tensors: Callable[[], Iterable[torch.Tensor]] = tuple
        # Tensors that held keys and values at any stage and still exist.
        self._kv_seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._elastic = False
        self._kv_peak = 0
        self._weight_bytes: int | None = None
        self._tokenizer: Any = None
        self.device = torch.device(task.device)

    def now(self) -> int:
        """Nanoseconds on the arm's clock, which excludes pauses."""
        return self._clock.now()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the arm's clock during a measurement; may nest.

        Synchronises with the device before the clock stops and before it continues.
        """
        self.synchronize()
        with self._clock.paused():
            yield
            self.synchronize()

    @property
    def has_warm_up(self) -> bool:
        """Whether the arm warms up before its clock starts."""
        return needs_warm_up(self.task.config.experiment.measured_repeats)

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def load(
        self, attention: str, check: Callable[[torch.nn.Module], None] | None = None
    ) -> torch.nn.Module:
        """Mark START, load the weights, run ``check`` or a first token, mark LOADED.

        The first token touches every weight (they are mapped from the file) and includes
        first-forward overhead. The next reading then differs only by the KV cache.
        """
        self.mark(Stage.START)
        begin = self.now()
        task = self.task
        model = load_model(task.directory, task.model.dtype, task.device, attention)
        self._tokenizer = optional_tokenizer(task.directory)
        self.synchronize()
        self._load_s = (self.now() - begin) / 1e9
        (check or _first_token)(model)
        trim()
        self._weight_bytes = storage_bytes((*model.parameters(), *model.buffers()))
        self.mark(Stage.LOADED)
        return model

    def pool_reserved(
        self,
        shape: PoolShape,
        tensors: Callable[[], Iterable[torch.Tensor]],
        poisoned: Callable[[], int] | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        """Report the KV cache and mark CACHE_READY.

        Args:
            shape: shape of the pool.
            tensors: returns the tensors that now hold keys and values; called at each stage.
            poisoned: counts the bytes of the empty cache from the content of its slots; None if
                unsupported.
            kv_dtype: dtype of the cache, if it differs from the model's.
        """
        self._kv_tensors = tensors
        self._elastic = shape.elastic
        with self.paused():
            self._wire.emit(
                PoolReserved(
                    arm=self.task.arm,
                    blocks=shape.blocks,
                    block_size=shape.block_size,
                    slot_bytes=shape.slot_bytes,
                    watermark_blocks=shape.watermark_blocks,
                    elastic=shape.elastic,
                    engine_blocks=shape.engine_blocks,
                    tensor_bytes=storage_bytes(tensors()),
                    budget_bytes=self.task.workload.budget_bytes,
                    scale_bytes=shape.scale_bytes,
                    kv_dtype=kv_dtype,
                )
            )
            self._empty_cache_readings(shape, poisoned)
        self.mark(Stage.CACHE_READY)
        reset_torch_peaks(self.task.device)  # later peaks are those of the generation

    def repeats(self) -> Iterator[int]:
        """Yield the numbers of the repeats, from 0: one, or as many as an experiment needs.

        In an experiment the first repeat is the warm-up, the others wait for their turn, and the
        end of each is reported.
        """
        experiment = self.task.config.experiment
        if experiment.name is None:
            yield 0
            return
        for self._repeat in range(experiment.total_repeats):
            if self._repeat:
                with self.paused():
                    self._wire.mark(TurnAwaited(arm=self.task.arm, repeat=self._repeat))
            yield self._repeat
            self.emit(
                RepeatFinished(
                    arm=self.task.arm,
                    repeat=self._repeat,
                    warm_up=self._repeat == 0,
                    generate_s=self._generate_ns / 1e9,
                )
            )

    def begin_generation(self) -> None:
        """Start the clock of the workload, and reset torch's random generator."""
        self._tokens_done = 0
        self._progress()
        torch.manual_seed(self.task.workload.sampling.seed)
        self._began = self.now()

    def end_generation(self) -> None:
        """Stop the clock of the workload, mark LAST_STEP, read the allocator's slack."""
        self.synchronize()
        self._generate_ns = self.now() - self._began
        if self._repeat:
            return  # further repeats use the same memory
        self.mark(Stage.LAST_STEP)
        self.emit(slack_reading(self.task.arm, Stage.LAST_STEP, self.task.device))

    def snapshot(
        self,
        step: int,
        tables: Callable[[], Mapping[int, Sequence[int]]],
        written: Callable[[], Mapping[int, int]],
        witness: Callable[[], int] | None = None,
    ) -> StepSnapshot:
        """Take a snapshot after a step, off the clock; regularly with ``tables`` and ``written``.

        ``witness`` counts written slots from the tensors; it is called if the config enables it.
        """
        with self.paused():
            asked = self.task.config.run.witness and not self._repeat
            count = witness() if witness and asked else None
            return StepSnapshot(count, keyframe_of(self.task.arm, step, tables, written))

    def step(
        self, plan: StepPlan, began: int, snapshot: StepSnapshot, first_tokens: int = 0
    ) -> None:
        """Log one executed step, without the time of measurements.

        Args:
            began: by :meth:`now`.
            first_tokens: of samples that start here, in addition to the tokens of the chunks.
        """
        took, ended = self.now() - began, time.monotonic_ns()
        with self.paused():
            self._wire.emit(
                Step(
                    t_ns=ended,
                    arm=self.task.arm,
                    plan=plan,
                    started_ns=ended - took,
                    written_slots=snapshot.written_slots,
                )
            )
            if self._elastic:
                self._note_growth()
            if snapshot.keyframe is not None:
                self._wire.emit(snapshot.keyframe)
            self._last_step = plan.step
            self._tokens_done += sum(chunk.samples for chunk in plan.chunks) + first_tokens
            self._progress()

    def request_finished(
        self, one: RequestProgress, reason: FinishReason, tokens: list[int], now: int
    ) -> None:
        """Log the end of a request and mark REQUEST_DONE, the latter only in the first repeat.

        Later repeats are timed, and a reading slows down what follows.
        """
        with self.paused():
            text = as_text(self._tokenizer, tokens)
            step, began = self._last_step, self._began
            self._wire.emit(
                one.finished(now, self.task.arm, step, reason.value, tokens, text, began)
            )
        if not self._repeat and self._marked_requests < MAX_REQUEST_MARKS:
            self._marked_requests += 1
            self.mark(Stage.REQUEST_DONE, one.request.id)

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Read the channels of this process, then wait until the runner has read its own."""
        arm = self.task.arm
        with self.paused():
            for reading in self._own_readings(stage, request):
                self._wire.emit(reading)
            self._wire.mark(
                StageEntered(arm=arm, stage=stage, step=self._last_step, request=request)
            )

    def emit(self, event: Any) -> None:
        """Emit any other event, off the clock."""
        with self.paused():
            self._wire.emit(event)

    def finish(self) -> None:
        """Mark RELEASED and finish; the arm must have dropped model and cache.

        Cache tensors that are still referenced count as held.
        """
        self._kv_tensors = tuple
        trim()
        self.mark(Stage.RELEASED)
        self._wire.emit(
            ArmFinished(
                arm=self.task.arm,
                import_s=self._import_s,
                load_s=self._load_s,
                generate_s=self._generate_ns / 1e9,
                threads=torch.get_num_threads(),
                device_name=device_name(self.device),
            )
        )

    def _own_readings(self, stage: Stage, request: int | None) -> list[Reading]:
        arm = self.task.arm
        readings = torch_readings(arm, stage, request, self.task.device)
        if stage not in (Stage.START, Stage.LOADED):
            readings.append(self._tensor_reading(self._held_bytes(), stage, request))
        if stage is Stage.LOADED and self._weight_bytes is not None:
            weights = Reading(
                arm=arm,
                channel=Channel.WEIGHTS,
                scope=Scope.TENSOR,
                bytes=self._weight_bytes,
                stage=stage,
            )
            readings.append(weights)
        return readings

    def _empty_cache_readings(self, shape: PoolShape, poisoned: Callable[[], int] | None) -> None:
        """Emit the size of the cache by its shape and, independently, by counting unwritten slots.

        Freed memory is trimmed afterwards: otherwise the C library keeps up to half the bytes of a
        tensor, which would be attributed to the cache.
        """
        formula = None if shape.elastic else shape.bytes
        counted = None if poisoned is None else poisoned()
        trim()
        grows = message("memory.nothing_reserved")
        unmarked = grows if shape.elastic else message("memory.not_poisoned")
        for channel, size, why in (
            (Channel.FORMULA, formula, grows), (Channel.POISON, counted, unmarked),
        ):  # fmt: skip
            self._wire.emit(
                Reading(
                    arm=self.task.arm,
                    channel=channel,
                    scope=Scope.TENSOR,
                    bytes=size,
                    reason=why if size is None else None,
                    stage=Stage.CACHE_READY,
                )
            )

    def _note_growth(self) -> None:
        """Emit the size of a growing cache whenever it exceeds its maximum."""
        size = storage_bytes(self._kv_tensors())
        if size > self._kv_peak:
            self._kv_peak = size
            self._wire.emit(self._tensor_reading(size, None, None))

    def _held_bytes(self) -> int:
        """Bytes of tensors that hold or held keys and values and still exist."""
        for tensor in self._kv_tensors():
            self._kv_seen[id(tensor)] = weakref.ref(tensor)
        seen = (ref() for ref in self._kv_seen.values())
        return storage_bytes(tensor for tensor in seen if tensor is not None)

    def _tensor_reading(self, size: int, stage: Stage | None, request: int | None) -> Reading:
        return Reading(
            arm=self.task.arm,
            channel=Channel.TENSORS,
            scope=Scope.TENSOR,
            bytes=size,
            stage=stage,
            request=request,
        )

    def _progress(self) -> None:
        total = sum(request.max_new_tokens for request in self.task.workload.requests)
        self._wire.emit(
            Progress(task=message("progress.generate"), done=self._tokens_done, total=total)
        )


@torch.inference_mode()
def _first_token(model: torch.nn.Module) -> None:
    parameter = next(model.parameters())
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=parameter.device), use_cache=False)


def device_name(device: torch.device) -> str:
    """Name of the GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
