"""A memory figure: bytes, or the reason why they are unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """Bytes, or None and the reason; ``total_bytes`` is the capacity, if any."""

    bytes: int | None
    reason: Message | None = None
    total_bytes: int | None = None

    def __post_init__(self) -> None:
        assert (self.bytes is None) != (self.reason is None), "either bytes or a reason"


def missing(key: str, **params: Any) -> MemoryFigure:
    """Create an unknown figure whose reason has this catalogue key."""
    return MemoryFigure(None, message(key, **params))


def unavailable(reason: Message) -> MemoryFigure:
    """Create an unknown figure with this reason."""
    return MemoryFigure(None, reason)
