"""Messages as keys and numbers, never as rendered text.

Everything that is stored or raised for a person is a :class:`Message`; only a reporter with a
language turns it into a sentence, so that an old run can be read in the other language.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    """A key of the catalogues in ``experiment/text`` and the values of its placeholders."""

    model_config = ConfigDict(frozen=True)

    key: str
    params: dict[str, Any] = {}


def message(key: str, **params: Any) -> Message:
    """Short form of :class:`Message`."""
    return Message(key=key, params=params)


def arm_message(arm: str) -> Message:
    """The message that names an arm; for one that nobody knows its key is in no catalogue."""
    return message(f"arm_name.{arm.replace('.', '_')}")
