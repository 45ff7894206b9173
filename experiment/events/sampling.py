"""Sampling settings, shared by events and config. Imports only pydantic."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

# Ids of sequences that the engine creates for beams start here.
FIRST_BEAM_ID = 1_000_000


def _refuse_bool(value: Any) -> Any:
    """Refuse booleans in a list of numbers; ``true`` would pass as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("truth_value", "a truth value")
    return value


Value = Annotated[int | float | str, BeforeValidator(_refuse_bool)]


class ConfigSection(BaseModel):
    """A group of settings: frozen, validated, without unknown names."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse booleans for a number; ``true`` would pass as 1."""
        if isinstance(value, bool) and info.field_name:
            annotation = cls.model_fields[info.field_name].annotation
            if annotation in (int, int | None):
                raise PydanticCustomError("int_type", "a truth value")
            if annotation is float:
                raise PydanticCustomError("float_type", "a truth value")
        return value


class SamplingConfig(ConfigSection):
    """Sampling parameters of every arm; temperature 0 is greedy.

    ``top_k`` 0 and ``top_p`` 1 disable the filter. ``n`` samples of each prompt run concurrently.
    Stop tokens are excluded until ``min_new_tokens`` are generated. ``beam_width`` ≥ 2 selects beam
    search with that many beams.
    """

    temperature: float = Field(0.0, ge=0, le=100)
    top_k: int = Field(0, ge=0, lt=2**63)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, lt=2**32)
    stop_token_ids: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = ()
    min_new_tokens: int = Field(0, ge=0, lt=2**63)
    n: int = Field(1, ge=1, le=1024)
    beam_width: int = Field(1, ge=1, le=256)

    @property
    def greedy(self) -> bool:
        """Whether sampling is deterministic (temperature 0)."""
        return self.temperature == 0
