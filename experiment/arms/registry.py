"""The function of every arm, under the name that ``--arms`` takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from experiment.arms.base import ArmRun
from experiment.config import arms


def _function(place: str) -> Callable[[ArmRun], None]:
    module, _, name = place.rpartition(".")
    found: Callable[[ArmRun], None] = getattr(import_module(f"experiment.arms.{module}"), name)
    return found


ARMS = {name: _function(arm.run) for name, arm in arms.ARMS.items() if arm.run is not None}
