"""CPU utilisation of the arm and of other programs, and utilisation of the GPU.

system  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  busy time of the cores we may use
arm     ━━━━━━━━━━━━━━━━━━              its process and all below it
runner                    ━━            this process: it samples and prints
others                      ━━━━━━━━━━  the rest
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from experiment.events import Usage
from experiment.machine.background_load import system_seconds
from experiment.machine.environment import Environment
from experiment.memory.devices import GpuReader
from experiment.memory.figure import UnreadableError
from experiment.memory.process_tree import CpuSeconds, ProcessTree
from experiment.text.messages import Message, message

EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class _Sample:
    """CPU seconds at one moment: of the arm by process, of the runner, of the system."""

    at: float
    tree: Mapping[Any, CpuSeconds]
    runner: float
    system: tuple[float, float] | None


class UsageMeter:
    """Take a :class:`Usage` every 250 ms, in the thread of the memory sampler.

    The runner's other children, its orphan reapers, are ignored: they sleep while an arm runs
    (:class:`experiment.process.process_tree.OrphanReaper`).
    """

    def __init__(
        self,
        arm: str,
        environment: Environment,
        tree: ProcessTree,
        gpu: GpuReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arm = arm
        self._on_gpu = environment.device == "cuda"
        self._tree = tree
        self._gpu = gpu
        self._clock = clock
        self._due = float("-inf")
        self._before: _Sample | None = None
        self._last: Usage | None = None

    def begin(self) -> None:
        """Start a new interval: CPU time used in turns of other arms is not counted."""
        now, self._before = self._clock(), None
        self._due = now + EVERY_S
        with suppress(UnreadableError):
            self._before = self._sample(now)

    def take(self, *, force: bool = False) -> Usage | None:
        """Measure since the last call if 250 ms have passed; None if not, or if it is unchanged.

        A value that is unknown for the same reason as before is not repeated. ``force``
        measures however short the interval is, because the arm is about to be paused.
        """
        now = self._clock()
        if now < self._due and not force:
            return None
        self._due = now + EVERY_S
        before = self._before
        try:
            sample = self._before = self._sample(now)
            if before is None or sample.at <= before.at:
                return None  # nothing to compare with
            cores: float | None = _used(before, sample) / (sample.at - before.at)
            reason, (others, others_reason) = None, _background_cores(before, sample)
        except UnreadableError as error:
            cores = others = None
            reason = others_reason = error.reason
        gpu, gpu_memory, gpu_reason = self._gpu_shares()
        usage = Usage(
            arm=self._arm,
            cpu_cores=cores,
            others_cores=others,
            gpu_share=gpu,
            gpu_memory_share=gpu_memory,
            reason=reason,
            others_reason=others_reason,
            gpu_reason=gpu_reason,
        )
        last, self._last = self._last, usage
        if cores is None and gpu is None and last is not None and last.cpu_cores is None:
            same = (last.reason, last.gpu_reason) == (reason, gpu_reason)
            return None if same else usage
        return usage

    def _sample(self, now: float) -> _Sample:
        """Read all counters.

        Raises:
            UnreadableError: those of the arm are unavailable.
        """
        return _Sample(now, self._tree.cpu_times(), time.process_time(), system_seconds())

    def _gpu_shares(self) -> tuple[float | None, float | None, Message | None]:
        if not self._on_gpu:
            return None, None, message("memory.device_is_cpu")
        try:
            busy, memory = self._gpu.utilisation()
        except UnreadableError as error:
            return None, None, error.reason
        return busy, memory, None


def _used(before: _Sample, now: _Sample) -> float:
    """CPU seconds of the arm, summed by process, because a total decreases when a child ends.

    A new process started within the interval, so all its time counts.
    """
    return sum(
        spent.own - (before.tree[process].own if process in before.tree else 0.0)
        for process, spent in now.tree.items()
    )


def _background_cores(before: _Sample, now: _Sample) -> tuple[float | None, Message | None]:
    """Cores kept busy by other programs between two samples, or None and the reason."""
    if before.system is None or now.system is None:
        return None, message("memory.no_system_times")
    busy, had = (after - first for first, after in zip(before.system, now.system, strict=True))
    if had <= 0:  # in some sandboxes system times are constant
        return None, message("memory.no_system_times")
    if _ended(before, now):
        return None, message("memory.child_ended")
    ours = _used(before, now) + now.runner - before.runner
    # Counters are rounded to 10 ms and not read at the same moment. Negative values are kept, so
    # that the mean is unbiased.
    return (busy - ours) / (now.at - before.at), None


def _ended(before: _Sample, now: _Sample) -> bool:
    """Whether a process of the arm ended in between, so that its CPU time is unknown.

    A process that began and ended between two samples was never listed; its time was added to its
    parent's.
    """
    return not before.tree.keys() <= now.tree.keys() or any(
        spent.ended > (before.tree[process].ended if process in before.tree else 0.0)
        for process, spent in now.tree.items()
    )
