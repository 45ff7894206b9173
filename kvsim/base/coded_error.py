"""Base of errors with translated messages."""

from __future__ import annotations

from typing import Any


class CodedError(Exception):
    """An error with a code, a translation key, and values for its message."""

    def __init__(self, code: str, **params: Any) -> None:
        given = ", ".join(f"{name}={value}" for name, value in params.items())
        super().__init__(f"{code}: {given}")
        self.code, self.params = code, params
