"""A memory figure: bytes, or the reason why they are unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """Bytes, or None and the reason; ``total_bytes`` is the capacity, if any."""

    bytes: int | None
    reason: Message | None = None
    total_bytes: int | None = None

    def __post_init__(self) -> None:
        assert (self.bytes is None) != (self.reason is None), "either bytes or a reason"


class UnreadableError(Exception):
    """A figure cannot be read: the ``reason``, and NVML's return ``code``, if any."""

    def __init__(self, reason: Message, code: int | None = None) -> None:
        super().__init__(reason.key)
        self.reason = reason
        self.code = code


def unreadable(key: str, **params: Any) -> UnreadableError:
    """Create an error whose reason has this catalogue key."""
    return UnreadableError(message(key, **params))


def figure(read: Callable[[], MemoryFigure]) -> MemoryFigure:
    """Read a figure; unknown if it cannot be read."""
    try:
        return read()
    except UnreadableError as error:
        return MemoryFigure(None, error.reason)


@contextmanager
def process_errors() -> Iterator[None]:
    """Convert errors of the system about a process.

    Raises:
        UnreadableError: the process has ended, or may not be read.
    """
    try:
        yield
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError) as error:
        raise unreadable("memory.process_gone") from error
    except (psutil.AccessDenied, PermissionError) as error:
        raise unreadable("memory.process_denied") from error
