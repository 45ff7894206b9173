"""How busy the processes of an arm keep the processor, everybody else, and anybody the GPU.

system  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━  busy time of the cores we may use
arm     ━━━━━━━━━━━━━━━━━━              its process and all below it
runner                    ━━            this process: it samples and prints
others                      ━━━━━━━━━━  what is left
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from experiment.events import Usage
from experiment.machine.background_load import system_seconds
from experiment.machine.environment import Environment
from experiment.memory.devices import GpuReader
from experiment.memory.nvml import NvmlError
from experiment.memory.process_tree import CpuSeconds, ProcessTree
from experiment.text.messages import Message, message

EVERY_S = 0.25
_Shares = tuple[float | None, float | None, Message | None]
_Cores = tuple[float | None, Message | None]


@dataclass(frozen=True, slots=True)
class _Look:
    """Seconds at a moment: of the clock, by process of the arm, of the runner, of the system."""

    at: float
    tree: Mapping[Any, CpuSeconds]
    runner: float
    system: tuple[float, float] | None


class UsageMeter:
    """Takes a :class:`Usage` every 250 ms from the thread of the memory sampler.

    The runner's other children are its guards, which sleep while an arm runs
    (:class:`experiment.process.process_tree.OrphanReaper`): they are not looked up.
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
        self._before: _Look | None = None
        self._last: Usage | None = None

    def begin(self) -> None:
        """Look now: what was used until here, while others had their turn, is nobody's business."""
        now, self._before = self._clock(), None
        self._due = now + EVERY_S
        looked = self._look(now)
        self._before = None if isinstance(looked, Message) else looked

    def take(self, *, now_or_never: bool = False) -> Usage | None:
        """Measure since the last call if 250 ms have passed. None: not yet, or nothing new.

        What is unknown for the same reason as before is no news. ``now_or_never``: however little
        time has passed, since the arm is about to stand still.
        """
        now = self._clock()
        if now < self._due and not now_or_never:
            return None
        self._due = now + EVERY_S
        taken = self._cores(now)
        if taken is None:
            return None  # the first look: there is nothing to compare with yet
        (cores, reason), (others, others_reason) = taken
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

    def _cores(self, now: float) -> tuple[_Cores, _Cores] | None:
        """Those of the arm, and those of others, since the last look."""
        looked = self._look(now)
        if isinstance(looked, Message):
            return (None, looked), (None, looked)
        before, self._before = self._before, looked
        if before is None or looked.at <= before.at:
            return None
        return (_used(before, looked) / (looked.at - before.at), None), _others(before, looked)

    def _look(self, now: float) -> _Look | Message:
        """All counters, one behind the other; the reason where those of the arm are not told."""
        try:
            tree = self._tree.cpu_times()
        except psutil.NoSuchProcess:
            return message("memory.process_gone")
        except psutil.AccessDenied:
            return message("memory.process_denied")
        return _Look(now, tree, time.process_time(), system_seconds())

    def _gpu_shares(self) -> _Shares:
        if not self._on_gpu:
            return None, None, message("memory.device_is_cpu")
        try:
            busy, memory = self._gpu.device().utilisation()
        except NvmlError as error:
            return None, None, error.reason
        return busy, memory, None


def _used(before: _Look, now: _Look) -> float:
    """CPU seconds of the arm, by process: a sum would fall when a child ends.

    A process that is new began within the interval, so all its time belongs to it.
    """
    return sum(
        spent.own - (before.tree[process].own if process in before.tree else 0.0)
        for process, spent in now.tree.items()
    )


def _others(before: _Look, now: _Look) -> _Cores:
    """Cores that everybody else kept busy between two looks, or None and why."""
    if before.system is None or now.system is None:
        return None, message("memory.no_system_times")
    busy, had = (after - first for first, after in zip(before.system, now.system, strict=True))
    if had <= 0:  # some sandboxes show a system in which no time passes
        return None, message("memory.no_system_times")
    if _ended(before, now):
        return None, message("memory.child_ended")
    ours = _used(before, now) + now.runner - before.runner
    # Counters are rounded to hundredths of a second, and not at the same moment: around nothing it
    # is a little more or less, and only a mean of both is right.
    return (busy - ours) / (now.at - before.at), None


def _ended(before: _Look, now: _Look) -> bool:
    """Whether a process of the arm ended in between: nobody knows what it used until then.

    Who began and ended between two looks was never seen; whoever waited for it has its time.
    """
    return not before.tree.keys() <= now.tree.keys() or any(
        spent.ended > (before.tree[process].ended if process in before.tree else 0.0)
        for process, spent in now.tree.items()
    )
