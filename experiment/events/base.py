"""What every event has, in :mod:`experiment.events` and the modules beside it."""

from __future__ import annotations

import time
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T", bound=BaseModel)
# The name of an arm, a check or a setting: it stands in paths, ids and tables as it is.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}$")]
# A whole number of 64 bits: what a file says may be multiplied and divided without a second look.
Int = Annotated[int, Field(gt=-(2**63), lt=2**63)]
_GIVEN: dict[frozenset[str], set[str]] = {}


class EventBase(BaseModel):
    """A fact of a run; ``t_ns`` are nanoseconds of the monotonic clock."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    t_ns: Int = Field(default_factory=time.monotonic_ns)


def share_fields_set(model: T) -> T:
    """Let models with the same fields set share one ``model_fields_set``; returns the model.

    Pydantic gives each a set of its own, larger than all that is in the model.
    """
    given = model.model_fields_set
    object.__setattr__(model, "__pydantic_fields_set__", _GIVEN.setdefault(frozenset(given), given))
    return model
