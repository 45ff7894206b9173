"""Messages as keys and numbers, never as rendered text.

Everything that is stored or raised for a person is a :class:`Message`; only a reporter with a
language turns it into a sentence, so that an old run can be read in the other language.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, ConfigDict

from kvsim.near import nearest

_LONG, _LONG_LIST, _HEAD = 400, 2000, 120


class Message(BaseModel):
    """A key of the catalogues in ``experiment/i18n`` and the values of its placeholders."""

    model_config = ConfigDict(frozen=True)

    key: str
    params: dict[str, Any] = {}


def message(key: str, **params: Any) -> Message:
    """Short form of :class:`Message`."""
    return Message(key=key, params=params)


def arm_message(arm: str) -> Message:
    """The message that names an arm; for one that nobody knows its key is in no catalogue."""
    return message(f"arm_name.{arm.replace('.', '_')}")


class ExitCode:
    """Exit codes of the program, as documented in docs/reliability.md."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INCOMPLETE = 3
    GATE = 4
    UNWRITABLE = 5
    CHANGED = 6
    # 128 and the number of the signal, as shells have it.
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143
    ENDED = (HUNG_UP, INTERRUPTED, TERMINATED)


class UserError(Exception):
    """Something the person can mend: one clear line, then this exit code, never a traceback."""

    def __init__(self, text: Message, exit_code: int = ExitCode.USAGE) -> None:
        short = {name: _shortened(value) for name, value in text.params.items()}
        self.text = Message(key=text.key, params=short)
        super().__init__(f"{text.key} {short}")
        self.exit_code = exit_code


def _shortened(value: Any) -> Any:
    """A name that someone else chose may have a million signs; the line that quotes it has not."""
    longest = _LONG_LIST if isinstance(value, str) and ", " in value else _LONG
    if isinstance(value, str) and len(value) > longest:
        text = redacted(value)
        return f"{text[:_HEAD]} … {text[-_HEAD:]}"
    return value


def cut(text: str, most: int) -> str:
    """``text`` in ``most`` characters."""
    return text if len(text) <= most else redacted(text)[: most - 3] + "..."


def redacted(text: str) -> str:
    """``text`` without secrets, to be called before it is cut: half a secret is not found later."""
    from experiment.privacy import without_private  # needs the texts, which need messages

    return without_private(text)


def user_error(key: str, **params: Any) -> UserError:
    """Short form of :class:`UserError` with the usage exit code."""
    return UserError(message(key, **params))


def shown(value: Any) -> str:
    """A value of a config as far as a message quotes it."""
    try:
        text = str(value)
    except ValueError:  # thousands of digits, which Python does not write
        text = hex(value)
    return cut(text, 60)


def unknown(
    kind: str,
    name: str,
    known: Collection[str],
    *,
    near: Collection[str] | None = None,
    see: str | None = None,
) -> UserError:
    """That there is nothing of that name, with the nearest that there is.

    ``kind`` is a name of ``error.what``. ``near`` are the nearest where the caller knows better.
    ``see`` is the option that lists all; without it they stand in the line.
    """
    params = {"kind": message(f"error.what.{kind}"), "name": name}
    near = nearest(name, known) if near is None else near
    if near:
        return user_error("error.unknown_near", near=", ".join(near), **params)
    if see:
        return user_error("error.unknown_see", see=see, **params)
    return user_error("error.unknown", choices=", ".join(known), **params)
