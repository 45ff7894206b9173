"""How tokens are chosen, as events and config say it. Needs pydantic alone, wherever it runs."""

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

# Sequences with ids from here on are beams that the engine has named itself.
FIRST_BEAM_ID = 1_000_000


def _no_truth(value: Any) -> Any:
    """Refuse true where a list may hold numbers; it would pass as 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("truth_value", "a truth value")
    return value


Value = Annotated[int | float | str, BeforeValidator(_no_truth)]


class Section(BaseModel):
    """A group of settings: frozen, complete, and strict about names and kinds."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true where a number belongs; it would pass as 1."""
        if isinstance(value, bool) and info.field_name:
            annotation = cls.model_fields[info.field_name].annotation
            if annotation in (int, int | None):
                raise PydanticCustomError("int_type", "a truth value")
            if annotation is float:
                raise PydanticCustomError("float_type", "a truth value")
        return value


class SamplingConfig(Section):
    """How tokens are chosen in every arm; temperature 0 takes the likeliest.

    ``top_k`` 0 and ``top_p`` 1 leave all tokens to choose from. ``n`` samples of each prompt are
    generated side by side. Until ``min_new_tokens`` are generated, no stop token is. From a
    ``beam_width`` of 2 on, the likeliest text is searched for with so many beams instead.
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
        """Whether no random number is drawn."""
        return self.temperature == 0
