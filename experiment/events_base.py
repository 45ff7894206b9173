"""What every event has, in :mod:`experiment.events` and the modules beside it."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field


class EventBase(BaseModel):
    """A fact of a run; ``t_ns`` are nanoseconds of the monotonic clock."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    t_ns: int = Field(default_factory=time.monotonic_ns)
