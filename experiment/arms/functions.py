"""The function of every arm in :data:`experiment.config.arms.ARMS`, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from experiment.arms.base import ArmRun
from experiment.config.arms import ARMS


def _function(place: str) -> Callable[[ArmRun], None]:
    module, _, name = place.rpartition(".")
    found: Callable[[ArmRun], None] = getattr(import_module(f"experiment.arms.{module}"), name)
    return found


FUNCTIONS = {name: _function(arm.run) for name, arm in ARMS.items() if arm.run is not None}
