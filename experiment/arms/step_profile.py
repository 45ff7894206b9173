"""Where a decode step's time goes: some steps of our engine under torch's profiler.

    step       ├────────────────────────────────────────────────────────┤   the engine's thread
    attention         ├──────┤                  ├──────┤                    our attention function
    matrix       ├───┤         ├────┤ ├─────┤              ├─────┤          linear, addmm, mm ...
    other          ├┤               ├┤                                      norms and the like
    rest       the remainder: Python, scheduling, the profiler's overhead

On a GPU that thread only launches work, so the rows are kernels, classified by name; a step waits
for all of its own. The rest is the time without a running kernel.

Of nested operations the outermost counts. The profiler slows down a step, most of all its rest, so
step times come from steps that are not profiled. At most half of the decode steps of the longest
request are profiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

from experiment.arms.base import ArmRun
from experiment.engine.attention.interface import ATTENTION, paged_attention
from experiment.engine.cpu.packed_layers import PackedLinear
from experiment.events import StepProfile
from kvsim.core.step import StepPlan

STEPS = 16
STEP, ATTEND, LINEAR = "pagedkv::step", "pagedkv::attention", "pagedkv::linear"
_MATRIX = ("linear", "addmm", "::mm", "::bmm", "baddbmm", "matmul")
# Parts of the names of CUDA kernels; our own are named after their functions.
_MATRIX_KERNELS = ("gemm", "gemv", "cutlass", "xmma", "nvjet", "splitk")
_ATTENTION_KERNELS = ("flash", "fmha", "attention")
_OUR_KERNELS = frozenset({"_decode", "_combine", "_prefill", "_write", "_rescale"})


class ProfiledSpan(NamedTuple):
    """An interval of a thread or of the device, in microseconds."""

    name: str
    start: float
    end: float
    device: bool = False


class StepTimes(NamedTuple):
    """Milliseconds of one step."""

    step: float
    matrix: float
    attention: float
    other: float

    @property
    def rest(self) -> float:
        """Time outside of all operations."""
        return self.step - self.matrix - self.attention - self.other


def split(spans: Iterable[ProfiledSpan]) -> list[StepTimes]:
    """Split steps by the kind of their outermost spans; spans nest."""
    parts: list[StepTimes] = []
    until = step_end = float("-inf")
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        if span.name == STEP:
            parts.append(StepTimes((span.end - span.start) / 1e3, 0.0, 0.0, 0.0))
            until, step_end = span.start, span.end
        elif until <= span.start < step_end:
            kind = _kernel_kind(span.name) if span.device else _kind(span.name)
            spent = getattr(parts[-1], kind) + (span.end - span.start) / 1e3
            parts[-1] = parts[-1]._replace(**{kind: spent})
            until = span.end
    return parts


def _kind(name: str) -> str:
    if name == ATTEND:
        return "attention"
    return "matrix" if any(part in name for part in _MATRIX) else "other"


def _kernel_kind(name: str) -> str:
    low = name.lower()
    if name in _OUR_KERNELS or any(part in low for part in _ATTENTION_KERNELS):
        return "attention"
    return "matrix" if any(part in low for part in _MATRIX_KERNELS) else "other"


class StepProfiler:
    """Profiles up to :data:`STEPS` consecutive decode steps, then emits a summary.

    Does nothing unless the config enables it.
    """

    def __init__(self, run: ArmRun) -> None:
        self._run = run
        longest = max(request.max_new_tokens for request in run.task.workload.requests)
        self._most = min(STEPS, max(1, (longest - 1) // 2))
        self._profiler: Any = None
        self._requests: list[int] = []
        self._done = not run.task.config.run.profile

    def step(self) -> AbstractContextManager[object]:
        """Context manager for a step."""
        if self._profiler is None:
            return nullcontext()
        return torch.profiler.record_function(STEP)

    def after(self, plan: StepPlan) -> None:
        """Start after the first decode step; stop at the next prompt."""
        decoding = bool(plan.chunks) and all(c.count == 1 and c.samples for c in plan.chunks)
        if self._profiler is not None and decoding:
            self._requests.append(len(plan.chunks))
        if self._profiler is None and decoding and not self._done:
            self._begin()
        elif self._profiler is not None and (not decoding or len(self._requests) >= self._most):
            self.finish()

    def finish(self) -> None:
        """Stop a running profiler, write the trace, emit the summary."""
        if self._profiler is None:
            return
        profiler, self._profiler, self._done = self._profiler, None, True
        profiler.stop()
        AttentionInterface.register(ATTENTION, paged_attention)
        PackedLinear.profile_scope = None
        if self._requests:
            self._run.emit(self._summary(profiler))

    def _begin(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._run.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        AttentionInterface.register(ATTENTION, _marked_attention)
        PackedLinear.profile_scope = partial(torch.profiler.record_function, LINEAR)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def _summary(self, profiler: Any) -> StepProfile:
        spans = spans_of(profiler.events(), on_gpu=self._run.device.type == "cuda")
        parts = split(spans)[: len(self._requests)]
        seen = any(span.name != STEP for span in spans)  # a GPU may deny access to its kernels

        def middle(name: str) -> float | None:
            return median(getattr(each, name) for each in parts) if seen else None

        return StepProfile(
            arm=self._run.task.arm,
            steps=len(parts),
            requests=int(median(self._requests)),
            step_ms=median(each.step for each in parts),
            matrix_ms=middle("matrix"),
            attention_ms=middle("attention"),
            other_ms=middle("other"),
            rest_ms=middle("rest"),
            trace=self._write(profiler),
        )

    def _write(self, profiler: Any) -> str | None:
        if self._run.task.logs is None:
            return None
        name = f"{self._run.task.arm}.trace.json.gz"
        profiler.export_chrome_trace(str(Path(self._run.task.logs, name)))
        return name


def _marked_attention(*arguments: Any, **named: Any) -> Any:
    with torch.profiler.record_function(ATTEND):
        return paged_attention(*arguments, **named)


def spans_of(events: Iterable[Any], on_gpu: bool) -> list[ProfiledSpan]:
    """Steps and their operations in the engine's thread, or kernels on a GPU."""
    some = list(events)
    threads = {e.thread for e in some if e.name == STEP and e.device_type.name == "CPU"}
    return [
        ProfiledSpan(e.name, e.time_range.start, e.time_range.end, e.device_type.name != "CPU")
        for e in some
        if (_is_kernel(e) if on_gpu and e.name != STEP else _is_ours(e, threads))
    ]


def _is_ours(event: Any, threads: set[int]) -> bool:
    return event.device_type.name == "CPU" and event.thread in threads


def _is_kernel(event: Any) -> bool:
    """Whether the event is a kernel, not one of our marks, which are also shown there."""
    return event.device_type.name == "CUDA" and event.name not in (ATTEND, LINEAR)
