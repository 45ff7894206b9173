"""Errors that a person can fix, and the program's exit codes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from experiment.text.messages import Message, message
from experiment.text.redaction import without_private
from kvsim.spelling import nearest

_LONG, _LONG_LIST, _HEAD = 400, 2000, 120


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
    """A value that a file chose, as one line can quote it: without breaks, and not too long."""
    if isinstance(value, Message):
        return Message(key=value.key, params=_shortened(value.params))
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    value = value.replace("\n", "\\n")
    if len(value) <= (_LONG_LIST if ", " in value else _LONG):
        return value
    text = redacted(value)
    return f"{text[:_HEAD]} … {text[-_HEAD:]}"


def cut(text: str, most: int) -> str:
    """``text`` in ``most`` characters."""
    return text if len(text) <= most else redacted(text)[: most - 3] + "..."


def redacted(text: str) -> str:
    """``text`` without secrets, to be called before it is cut: half a secret is not found later."""
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
