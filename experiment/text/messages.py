"""Messages as keys and parameters, never as rendered text.

Everything that is stored or raised for the user is a :class:`Message`. Only reporters render it, so
that a stored run can be rendered in either language.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A catalogue key and the values of its placeholders."""

    model_config = ConfigDict(frozen=True)

    key: str
    params: dict[str, Any] = {}


def message(key: str, **params: Any) -> Message:
    """Short form of :class:`Message`."""
    return Message(key=key, params=params)


def arm_message(arm: str) -> Message:
    """Name of an arm as a message; the key of an unknown arm is in no catalogue."""
    return message(f"arm_name.{arm.replace('.', '_')}")
