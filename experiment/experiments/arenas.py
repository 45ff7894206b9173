"""Figures of the contiguous arenas that an experiment runs alongside its paged arm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiment.analysis.experiment_results import Number
from experiment.events import HolesSeen
from experiment.experiments.measured import Measured
from kvsim.sim.arena import ArenaCounts

Measure = Callable[[Measured], Number | None]


def _arena(m: Measured, allocator: str) -> HolesSeen | None:
    return next((each for each in m.events.holes if each.allocator == allocator), None)


def hole(allocator: str, name: str, bytes_each: bool = False) -> Measure:
    """Measure a count of an arena; ``bytes_each``: a count of slots, in bytes."""

    def measure(m: Measured) -> int | None:
        arena = _arena(m, allocator)
        value: int | None = getattr(arena, name) if arena else None
        return value * arena.slot_bytes if arena and bytes_each and value is not None else value

    return measure


def arena_mean(allocator: str) -> Measure:
    """Mean concurrency in an arena, where a request runs one step per generated token."""

    def measure(m: Measured) -> float | None:
        arena = _arena(m, allocator)
        tokens = sum(request.max_new_tokens for request in m.workload.requests)
        return tokens / arena.steps if arena and arena.steps else None

    return measure


def arena_bytes(name: str) -> PredictArena:
    """Predict a count of slots, in bytes; ``name``: of :class:`kvsim.sim.arena.ArenaCounts`."""

    def predict(prediction: ArenaPrediction) -> int | None:
        slots: int | None = getattr(prediction, name)
        return None if slots is None else slots * prediction.slot_bytes

    return predict


@dataclass(frozen=True, slots=True)
class ArenaPrediction(ArenaCounts):
    """kvsim's prediction for an arena; ``running_mean``: mean concurrency over its steps."""

    slot_bytes: int
    running_mean: float


PredictArena = Callable[[ArenaPrediction], Number | None]
