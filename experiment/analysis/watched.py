"""Utilisation of the machine by an arm, and cost of sampling, from its events."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from experiment.analysis.results import Watch
from experiment.events import Baseline, Channel, ForeignProcesses, Reading, Usage
from experiment.replay.arm_events import ArmEvents
from experiment.text.messages import Message, message

# Maximum share of the usable cores for sampling.
COST_LIMIT = 0.01


def watch(events: ArmEvents, cores: float | None) -> Watch:
    """Means over the time in which the arm generated; None with a reason without samples."""
    usages, baseline, foreign = events.usages, events.baseline, events.foreign
    cost, steps = events.sampler_cost, events.steps
    # While it generated; an empty period without steps.
    period = (steps[0].started_ns, steps[-1].t_ns) if steps else (1, 0)
    busy = _between(usages, *period)
    last = busy[-1] if busy else None
    others = others_cores(usages, *period)
    return Watch(
        cpu_cores=_mean(usage.cpu_cores for usage in busy),
        cpu_reason=last.reason if last else message("memory.no_usage_sample"),
        others_cores=others,
        others_reason=_others_reason(others, last),
        gpu_share=_mean(usage.gpu_share for usage in busy),
        gpu_memory_share=_mean(usage.gpu_memory_share for usage in busy),
        gpu_reason=next((usage.gpu_reason for usage in usages if usage.gpu_reason), None),
        sampler_cpu_s=cost.cpu_s if cost else None,
        watched_s=cost.wall_s if cost else None,
        settled=baseline.settled if baseline else None,
        waited_s=baseline.waited_s if baseline else None,
        usable_cores=cores,
        device_channel=baseline.channel.value if baseline else None,
        baseline_bytes=baseline.bytes if baseline else None,
        device_delta_bytes=_device_delta(events.readings, baseline),
        device_reason=_device_reason(baseline),
        foreign_before=foreign.before if foreign else None,
        foreign_after=foreign.after if foreign else None,
        foreign_reason=(foreign.reason if foreign else None)
        or (baseline.foreign_reason if baseline else None),
    )


def foreign_processes(baseline: Baseline | None, after: ForeignProcesses | None) -> int | None:
    """Maximum number of foreign processes on the GPU before and after the arm; None: unknown."""
    counts = [baseline.foreign if baseline else None, *([after.after] if after else [])]
    known = [count for count in counts if count is not None]
    return max(known) if len(known) == len(counts) else None


def _others_reason(others: float | None, last: Usage | None) -> Message | None:
    if others is not None:
        return None  # even if the last sample lacks it
    return last.others_reason if last else message("memory.no_usage_sample")


def _device_delta(readings: Iterable[Reading], baseline: Baseline | None) -> int | None:
    """Peak increase of GPU memory over the baseline, in bytes."""
    if baseline is None or baseline.bytes is None or baseline.channel is Channel.SYSTEM:
        return None
    sizes = [r.bytes for r in readings if r.channel is baseline.channel and r.bytes is not None]
    return max(sizes) - baseline.bytes if sizes else None


def _device_reason(baseline: Baseline | None) -> Message | None:
    if baseline is None:
        return None
    on_cpu = baseline.channel is Channel.SYSTEM
    return message("memory.others_move") if on_cpu else baseline.reason


def others_cores(usages: Iterable[Usage], begin_ns: int, end_ns: int) -> float | None:
    """Mean background load in a period, in cores; None if unknown."""
    mean = _mean(usage.others_cores for usage in _between(usages, begin_ns, end_ns))
    # A sample may be negative, because counters are rounded.
    return None if mean is None else max(0.0, mean)


def _between(usages: Iterable[Usage], begin_ns: int, end_ns: int) -> list[Usage]:
    return [usage for usage in usages if begin_ns <= usage.t_ns <= end_ns]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
