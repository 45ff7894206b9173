"""Profiled decode steps of an arm in a round, and the time of unprofiled ones.

    steps of one process    plain ... | profiled ... | plain ...
                                                       └─► plain_step_ms: their median

Both come from the same process, so that the profiled matrix products can be subtracted from the
plain step.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from experiment.events import Step, StepProfile
from experiment.record.log import Record


class Profile(StepProfile):
    """A profile of a round; ``plain_step_ms`` is the median of ``plain_steps`` later steps.

    These are pure decode steps with as many requests as the profiled ones; None without such steps.
    """

    workload: str
    round: int
    plain_step_ms: float | None = None
    plain_steps: int = 0


def profiles_of(record: Record, workload: str, number: int) -> list[Profile]:
    """Profiles of all profiled arms."""
    profiles = []
    for event in record.of(StepProfile):
        plain = _plain_ms(event, [step for step in record.of(Step) if step.arm == event.arm])
        profiles.append(
            Profile(
                **event.model_dump(),
                workload=workload,
                round=number,
                plain_step_ms=median(plain) if plain else None,
                plain_steps=len(plain),
            )
        )
    return profiles


def _plain_ms(profile: StepProfile, steps: Sequence[Step]) -> list[float]:
    """Milliseconds of the steps after the profiled ones that have the same shape."""
    times = []
    for step in steps:
        chunks = step.plan.chunks if step.started_ns > profile.t_ns else ()
        decodes = all(chunk.count == 1 and chunk.samples for chunk in chunks)
        if decodes and len(chunks) == profile.requests:
            times.append((step.t_ns - step.started_ns) / 1e6)
    return times
