"""A memory figure: bytes, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes, or None and the reason; ``total_bytes`` is the capacity where there is one."""

    bytes: int | None
    reason: Message | None = None
    total_bytes: int | None = None

    def __post_init__(self) -> None:
        assert (self.bytes is None) != (self.reason is None), "either bytes or a reason"


def missing(key: str, **params: Any) -> Figure:
    """Make a figure that could not be had, for the reason of this catalogue key."""
    return Figure(None, message(key, **params))


def unavailable(reason: Message) -> Figure:
    """Make a figure that could not be had, for this reason."""
    return Figure(None, reason)
