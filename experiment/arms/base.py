"""Interface through which arms report stages, pool, steps and requests."""

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
    Channel,
    Keyframe,
    PoolReserved,
    ProfileRun,
    Reading,
    Scope,
    Stage,
)
from experiment.events.pace import KEYFRAME_EVERY
from experiment.memory.tensors import (
    reset_torch_peaks,
    slack_reading,
    storage_bytes,
    torch_readings,
    trim,
)
from experiment.model.load import (
    as_text,
    load_model,
    optional_tokenizer,
    transformers_attention,
)
from experiment.process.wire import Wire
from experiment.text.messages import Message, message
from experiment.workload.arm_reporter import ArmReporter
from experiment.workload.arrival_clock import ArrivalClock
from experiment.workload.first_prompts import needs_warm_up
from kvsim.accounting.ledger import PoolShape
from kvsim.core.step import StepPlan


class StepSnapshot(NamedTuple):
    """State after a step, taken before it changes again.

    Slots counted from the tensors (None: not counted), and a keyframe if one is due.
    """

    written_slots: int | None = None
    keyframe: Keyframe | None = None


class ArmRun(ArmReporter):
    """A running arm on our interpreter."""

    task: ArmTask

    def __init__(self, wire: Wire, task: ArmTask, import_s: float) -> None:
        super().__init__(wire, task)
        self._import_s = import_s
        self._load_s = 0.0
        self._kv_tensors: Callable[[], Iterable[torch.Tensor]] = tuple
        # Tensors that held keys and values at any stage and still exist.
        self._kv_seen: dict[int, weakref.ref[torch.Tensor]] = {}
        self._elastic = False
        self._kv_peak = 0
        self._weight_bytes: int | None = None
        self._tokenizer: Any = None
        self.device = torch.device(task.device)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the arm's clock during a measurement; may nest.

        Synchronises with the device before the clock stops and before it continues.
        """
        self.synchronize()
        with self.clock.paused():
            yield
            self.synchronize()

    @property
    def has_warm_up(self) -> bool:
        """Whether the arm warms up before its clock starts."""
        return needs_warm_up(self.task.config.experiment.measured_repeats)

    @contextmanager
    def recorded_warm_up(self, prompts: Sequence[int]) -> Iterator[None]:
        """Pause the clock during a warm-up without our engine, and record its size and duration.

        Args:
            prompts: lengths in tokens.
        """
        began = time.perf_counter()
        with self.paused():
            yield
            self.synchronize()
        seconds = time.perf_counter() - began
        self.emit(
            ProfileRun(
                arm=self.task.arm,
                kept=False,
                prompt_tokens=sum(prompts),
                requests=len(prompts),
                seconds=seconds,
            )
        )

    def measured(self) -> Iterator[int]:
        """Yield the numbers of the repeats, as many as the experiment needs."""
        return self.repeats(self.task.config.experiment.measured_repeats)

    def arrivals(self) -> ArrivalClock:
        """Clock of the arm's arrivals; create it when the generation begins."""
        return ArrivalClock(self.now, self.task.config.workload.timed)

    def synchronize(self) -> None:
        """Wait until the device has finished all work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def execute(
        self,
        generate: Callable[[Any], None],
        attention: str | None = None,
        check: Callable[[torch.nn.Module], None] | None = None,
    ) -> None:
        """Run the arm: load the model, generate, mark RELEASED.

        Args:
            generate: reserves the cache and runs the workload on the model. Cache tensors that are
                still referenced when it returns count as held.
            attention: as in :meth:`load`; None: that of the arms of Transformers.
            check: as in :meth:`load`.
        """
        generate(self.load(attention or transformers_attention(self.task.model), check))
        self._kv_tensors = tuple
        trim()
        self.mark(Stage.RELEASED)
        self._wire.emit(
            ArmFinished(
                arm=self.task.arm,
                import_s=self._import_s,
                load_s=self._load_s,
                generate_s=self.generate_s,
                threads=torch.get_num_threads(),
                device_name=device_name(self.device),
            )
        )

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
        (check or first_token)(model)
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

    def begin_generation(self) -> None:
        """Start the clock of the workload, and reset torch's random generator."""
        torch.manual_seed(self.task.workload.sampling.seed)
        super().begin_generation()

    def end_generation(self) -> None:
        """Stop the clock of the workload, mark LAST_STEP, read the allocator's slack."""
        self.synchronize()
        self.stop_generation()
        if self.repeat:
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
        """Take a snapshot after a step, off the clock.

        Args:
            tables: returns the block table of each request, for a keyframe.
            written: returns the number of written slots of each request, for a keyframe.
            witness: counts written slots from the tensors; called if the config enables it.
        """
        with self.paused():
            asked = self.task.config.run.witness and not self.repeat
            count = witness() if witness and asked else None
            if step % KEYFRAME_EVERY:
                return StepSnapshot(count)
            found = {request: list(table) for request, table in tables().items()}
            frame = Keyframe(arm=self.task.arm, step=step, tables=found, written=dict(written()))
            return StepSnapshot(count, frame)

    def step(
        self, plan: StepPlan, began: int, snapshot: StepSnapshot, first_tokens: int = 0
    ) -> None:
        """Log one executed step, without the time of measurements; ``began`` is by :meth:`now`."""
        took, ended = self.now() - began, time.monotonic_ns()
        with self.paused():
            self.log_step(plan, ended, took, snapshot.written_slots, first_tokens)
            if self._elastic:
                self._note_growth()
            if snapshot.keyframe is not None:
                self._wire.emit(snapshot.keyframe)

    def text_of(self, tokens: list[int]) -> str:
        """Decode tokens, or list their ids without a tokenizer."""
        return as_text(self._tokenizer, tokens)

    def readings(self, stage: Stage, request: int | None) -> list[Reading]:
        """torch's counters, and the sizes of tensors."""
        found = torch_readings(self.task.arm, stage, request, self.task.device)
        if stage not in (Stage.START, Stage.LOADED):
            found.append(self._of_tensors(Channel.TENSORS, self._held_bytes(), stage, request))
        if stage is Stage.LOADED:
            found.append(self._of_tensors(Channel.WEIGHTS, self._weight_bytes, stage))
        return found

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
            reason = why if size is None else None
            self._wire.emit(self._of_tensors(channel, size, Stage.CACHE_READY, reason=reason))

    def _note_growth(self) -> None:
        """Emit the size of a growing cache whenever it exceeds its maximum."""
        size = storage_bytes(self._kv_tensors())
        if size > self._kv_peak:
            self._kv_peak = size
            self._wire.emit(self._of_tensors(Channel.TENSORS, size, None))

    def _held_bytes(self) -> int:
        """Bytes of tensors that hold or held keys and values and still exist."""
        for tensor in self._kv_tensors():
            self._kv_seen[id(tensor)] = weakref.ref(tensor)
        seen = (ref() for ref in self._kv_seen.values())
        return storage_bytes(tensor for tensor in seen if tensor is not None)

    def _of_tensors(
        self, channel: Channel, size: int | None, stage: Stage | None, request: int | None = None,
        reason: Message | None = None,
    ) -> Reading:  # fmt: skip
        return Reading(
            arm=self.task.arm,
            channel=channel,
            scope=Scope.TENSOR,
            bytes=size,
            reason=reason,
            stage=stage,
            request=request,
        )


@torch.inference_mode()
def first_token(model: torch.nn.Module) -> None:
    """Compute the logits of one token."""
    parameter = next(model.parameters())
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=parameter.device), use_cache=False)


def device_name(device: torch.device) -> str:
    """Name of the GPU, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
