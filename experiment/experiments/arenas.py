"""Figures of the contiguous arenas that an experiment keeps beside its paged arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiment.analysis.experiment_results import Number
from experiment.experiments.measured import Measured
from kvsim.sim.arena import ArenaCounts

Measure = Callable[[Measured], Number | None]


def hole(allocator: str, name: str, bytes_each: bool = False) -> Measure:
    """A count of an arena; ``bytes_each``: of slots, as bytes."""

    def measure(m: Measured) -> int | None:
        seen = m.holes.get(allocator)
        value: int | None = getattr(seen, name) if seen else None
        return value * seen.slot_bytes if seen and bytes_each and value is not None else value

    return measure


def arena_mean(allocator: str) -> Measure:
    """Requests at a time in an arena: there each runs as many steps as it generates tokens."""

    def measure(m: Measured) -> float | None:
        seen = m.holes.get(allocator)
        asked = sum(request.max_new_tokens for request in m.workload.requests)
        return asked / seen.steps if seen and seen.steps else None

    return measure


def arena_bytes(name: str) -> ForetellArena:
    """What kvsim's arithmetic says of slots, as bytes: :class:`kvsim.sim.arena.ArenaCounts`."""

    def predict(said: ArenaPrediction) -> int | None:
        slots: int | None = getattr(said, name)
        return None if slots is None else slots * said.slot_bytes

    return predict


@dataclass(frozen=True, slots=True)
class ArenaPrediction(ArenaCounts):
    """What kvsim foretells of an arena; ``running_mean``: requests at a time, over its steps."""

    slot_bytes: int
    running_mean: float


ForetellArena = Callable[[ArenaPrediction], Number | None]
