"""Base class and field types of all events."""

from __future__ import annotations

import time
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T", bound=BaseModel)
# Name of an arm, check or setting; used unchanged in paths, ids and tables.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}$")]
# A 64-bit integer: values from a file are multiplied and divided without further checks.
Int = Annotated[int, Field(gt=-(2**63), lt=2**63)]
_GIVEN: dict[frozenset[str], set[str]] = {}


class EventBase(BaseModel):
    """A fact of a run; ``t_ns`` is nanoseconds of the monotonic clock."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    t_ns: Int = Field(default_factory=time.monotonic_ns)


class ArmEvent(EventBase):
    """A fact of one arm."""

    event: str
    arm: Name


def share_fields_set(model: T) -> T:
    """Share one ``model_fields_set`` between models with the same fields set; return the model.

    Pydantic's own set for each model is larger than the rest of the model.
    """
    given = model.model_fields_set
    object.__setattr__(model, "__pydantic_fields_set__", _GIVEN.setdefault(frozenset(given), given))
    return model
