"""Errors that the user can fix, and the program's exit codes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from experiment.text.messages import Message, message
from experiment.text.redaction import without_private
from kvsim.base.spelling import nearest

_LONG, _LONG_LIST, _HEAD = 400, 2000, 120


class ExitCode:
    """Exit codes of the program; see docs/commands.md."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    INCOMPLETE = 3
    GATE = 4
    UNWRITABLE = 5
    CHANGED = 6
    # 128 + signal number, as in shells.
    HUNG_UP = 129
    INTERRUPTED = 130
    TERMINATED = 143
    ENDED = (HUNG_UP, INTERRUPTED, TERMINATED)


class UserError(Exception):
    """An error that the user can fix: printed as one line without a traceback."""

    def __init__(self, text: Message, exit_code: int = ExitCode.USAGE) -> None:
        short = {name: _shortened(value) for name, value in text.params.items()}
        self.text = Message(key=text.key, params=short)
        super().__init__(f"{text.key} {short}")
        self.exit_code = exit_code


def _shortened(value: Any) -> Any:
    """Shorten a value from a file to one line that a message can quote."""
    if isinstance(value, Message):
        return Message(key=value.key, params=_shortened(value.params))
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items()}
    if not isinstance(value, str):
        return value
    value = value.replace("\n", "\\n")
    names = value.split(", ")
    is_list = len(names) > 1 and max(map(len, names)) <= _HEAD
    if len(value) <= (_LONG_LIST if is_list else _LONG):
        return value
    text = redacted(value)
    return f"{text[:_HEAD]} … {text[-_HEAD:]}"


def cut(text: str, most: int) -> str:
    """Shorten ``text`` to at most ``most`` characters."""
    return text if len(text) <= most else redacted(text)[: most - 3] + "..."


def one_line(error: BaseException, limit: int = 200) -> str:
    """Shorten a library's error to one line: its beginning and its end.

    Compilers quote the source first and say what is wrong last.
    """
    text = " ".join(str(error).split()) or type(error).__name__
    if len(text) > limit:
        text = redacted(text)
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def redacted(text: str) -> str:
    """Remove secrets from ``text``. Call it before truncating: a cut secret is not recognised."""
    return without_private(text)


def user_error(key: str, **params: Any) -> UserError:
    """Short form of :class:`UserError` with the usage exit code."""
    return UserError(message(key, **params))


def shown(value: Any) -> str:
    """Shorten a config value for a message."""
    try:
        text = str(value)
    except ValueError:  # thousands of digits: str() refuses
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
    """Build the error for an unknown name, with the nearest known names.

    Args:
        kind: a name below ``error.what`` in the catalogues.
        name: the unknown name.
        known: all valid names.
        near: the nearest names, if the caller has already determined them.
        see: the option that lists all names; without it the message lists them.
    """
    params = {"kind": message(f"error.what.{kind}"), "name": name}
    near = nearest(name, known) if near is None else near
    if near:
        return user_error("error.unknown_near", near=", ".join(near), **params)
    if see:
        return user_error("error.unknown_see", see=see, **params)
    return user_error("error.unknown", choices=", ".join(known), **params)
