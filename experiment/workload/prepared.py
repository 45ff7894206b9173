"""Result of the preparation."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.events import ModelPrepared, WorkloadReady


@dataclass(frozen=True, slots=True)
class Prepared:
    """Model and workload, as passed to every arm of a run."""

    directory: str
    model: ModelPrepared
    workload: WorkloadReady
