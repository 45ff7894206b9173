"""What a run prepares before its first arm."""

from __future__ import annotations

from dataclasses import dataclass

from experiment.events import ModelPrepared, WorkloadReady


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every arm of a run is given."""

    directory: str
    model: ModelPrepared
    workload: WorkloadReady
