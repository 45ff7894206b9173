"""The only way in which an arm reports: its stages, its pool, its steps and its requests.

process starts ─ mark START ─ load model ─ mark LOADED ─ reserve cache ─ mark CACHE_READY
    ─ generate (steps, requests, mark REQUEST_DONE) ─ mark LAST_STEP ─ release ─ mark RELEASED
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from experiment.arms.task import ArmTask
from experiment.events import (
    ArmFinished,
    ArmStarted,
    Channel,
    Keyframe,
    PoolReserved,
    Progress,
    Reading,
    RepeatFinished,
    Scope,
    Stage,
    StageEntered,
    Step,
    TurnAwaited,
    WorkloadRequest,
)
from experiment.events.arm_clock import Clock
from experiment.events.pace import KEYFRAME_EVERY, MAX_REQUEST_MARKS
from experiment.machine.thread_record import thread_facts, usable_cores
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
from experiment.workload.first_prompts import are_due
from experiment.workload.request_times import RequestTimes
from kvsim.accounting.ledger import PoolShape
from kvsim.core.step import StepPlan


class Picture(NamedTuple):
    """``written_slots`` as counted from the tensors; None where nobody counted."""

    written_slots: int | None = None
    keyframe: Keyframe | None = None


def keyframe_of(
    arm: str,
    step: int,
    tables: Callable[[], Mapping[int, Sequence[int]]],
    written: Callable[[], Mapping[int, int]],
) -> Keyframe | None:
    """A whole picture where it is its turn, every :data:`KEYFRAME_EVERY` steps.

    Args:
        tables: the block table of each request.
        written: the slots of each that are written.
    """
    if step % KEYFRAME_EVERY:
        return None
    pairs = tables().items()
    found = {request: list(table) for request, table in pairs}
    return Keyframe(arm=arm, step=step, tables=found, written=dict(written()))


class ArmRun:
    """An arm in progress: emits its events and keeps its clock.

    The clock stands still while the arm is being measured, so that measuring costs no arm any
    of its speed.
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
        # What held keys and values at any stage, as long as anybody still holds it.
        self._kv_seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._elastic = False
        self._kv_peak = 0
        self._weight_bytes: int | None = None
        self._tokenizer: Any = None
        self.device = torch.device(task.device)

    def now(self) -> int:
        """Nanoseconds on a clock that stands still in pauses."""
        return self._clock.now()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the arm's clock for the duration of a measurement; may be nested.

        The device has done what it was asked for when the clock stops, and what it was asked for
        in between when it goes on.
        """
        self.synchronize()
        with self._clock.paused():
            yield
            self.synchronize()

    @property
    def computes_before(self) -> bool:
        """Whether first prompts are due before the clock."""
        return are_due(self.task.config.experiment.measured)

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def load(
        self, attention: str, check: Callable[[torch.nn.Module], None] | None = None
    ) -> torch.nn.Module:
        """Mark START, load the weights, run ``check`` and a first token, mark LOADED.

        The first token touches every weight (they are mapped from the file) and starts what the
        runtime starts at first use, so that the next reading differs from this one by the KV
        cache alone.
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
        """Announce the KV cache and mark CACHE_READY.

        ``tensors`` yields the tensors that hold keys and values now; it is asked at each stage.
        ``poisoned`` counts the bytes of the empty cache by what its slots hold; None where nothing
        is there to count. ``kv_dtype`` names another precision than the model's.
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
        reset_torch_peaks(self.task.device)  # from here on they are those of the generation

    def repeats(self) -> Iterator[int]:
        """Numbers of the times that the workload is run, from 0: once, or as an experiment asks.

        Of an experiment the first one warms up, each other one waits for its turn, and each is told
        when it is over.
        """
        experiment = self.task.config.experiment
        if experiment.name is None:
            yield 0
            return
        for self._repeat in range(experiment.times):
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
        """Start the clock of the workload; the random numbers that torch draws begin anew."""
        self._tokens_done = 0
        self._progress()
        torch.manual_seed(self.task.workload.sampling.seed)
        self._began = self.now()

    def end_generation(self) -> None:
        """Stop the clock of the workload, mark LAST_STEP, see what the allocator keeps."""
        self.synchronize()
        self._generate_ns = self.now() - self._began
        if self._repeat:
            return  # further repeats take the same memory
        self.mark(Stage.LAST_STEP)
        self.emit(slack_reading(self.task.arm, Stage.LAST_STEP, self.task.device))

    def picture(
        self,
        step: int,
        tables: Callable[[], Mapping[int, Sequence[int]]],
        written: Callable[[], Mapping[int, int]],
        witness: Callable[[], int] | None = None,
    ) -> Picture:
        """What a step left behind, off the clock; every so often ``tables`` and ``written`` too.

        ``witness`` counts written slots from the tensors; it is asked where the config says so.
        """
        with self.paused():
            asked = self.task.config.run.witness and not self._repeat
            count = witness() if witness and asked else None
            return Picture(count, keyframe_of(self.task.arm, step, tables, written))

    def step(self, plan: StepPlan, began: int, picture: Picture, first_tokens: int = 0) -> None:
        """Log one executed step: all that the arm did for it, and nothing that was done to measure.

        Args:
            began: by :meth:`now`.
            first_tokens: of samples that begin here, beside the tokens of the chunks.
        """
        took, ended = self.now() - began, time.monotonic_ns()
        with self.paused():
            self._wire.emit(
                Step(
                    t_ns=ended,
                    arm=self.task.arm,
                    plan=plan,
                    started_ns=ended - took,
                    written_slots=picture.written_slots,
                )
            )
            if self._elastic:
                self._note_growth()
            if picture.keyframe is not None:
                self._wire.emit(picture.keyframe)
            self._last_step = plan.step
            self._tokens_done += sum(chunk.samples for chunk in plan.chunks) + first_tokens
            self._progress()

    def request_finished(
        self, request: WorkloadRequest, reason: str, tokens: list[int], times: RequestTimes
    ) -> None:
        """Log the end of a request and mark REQUEST_DONE: of repeats, in the first one alone.

        The others are measured, and a reading lengthens what follows it.
        """
        with self.paused():
            text = as_text(self._tokenizer, tokens)
            step, began = self._last_step, self._began
            self._wire.emit(times.event(self.task.arm, step, request, reason, tokens, text, began))
        if not self._repeat and self._marked_requests < MAX_REQUEST_MARKS:
            self._marked_requests += 1
            self.mark(Stage.REQUEST_DONE, request.id)

    def mark(self, stage: Stage, request: int | None = None) -> None:
        """Read the channels of this process, then stand still until the runner has read its own."""
        arm = self.task.arm
        with self.paused():
            for reading in self._own_readings(stage, request):
                self._wire.emit(reading)
            self._wire.mark(
                StageEntered(arm=arm, stage=stage, step=self._last_step, request=request)
            )

    def emit_started(self, pid: int) -> None:
        """First event of the arm."""
        self._wire.emit(
            ArmStarted(arm=self.task.arm, pid=pid, variables=thread_facts(), cores=usable_cores())
        )

    def emit(self, event: Any) -> None:
        """Send any other event, off the clock."""
        with self.paused():
            self._wire.emit(event)

    def finish(self) -> None:
        """Mark RELEASED (the arm has dropped its model and cache) and end well.

        Tensors of the cache that somebody still holds count as held there.
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
        """Size of the cache by its shape and, independently, by counting unwritten slots.

        What counting took is given back: the C library would keep up to half the bytes of a
        tensor, and all who look at the process would take them for the cache's.
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
        """Tell how much a growing cache holds whenever it is more than ever before."""
        size = storage_bytes(self._kv_tensors())
        if size > self._kv_peak:
            self._kv_peak = size
            self._wire.emit(self._tensor_reading(size, None, None))

    def _held_bytes(self) -> int:
        """Bytes of the tensors that hold keys and values, or held them and are still there."""
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
