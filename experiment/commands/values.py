"""Texts of the command line → numbers, sizes and lists; what does not fit is said in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.text.sizes import parse_bytes, size_error

T = TypeVar("T")
# One request in eleven days.
LEAST_RATE = 1e-6
# Of tokens, requests, blocks: none that is meant comes near it, and arrays hold it.
MOST = 2**31 - 1


def whole(flag: str, text: str | None, least: int = 1, most: int = MOST) -> int | None:
    """A whole number from ``least`` to ``most``; None where none was given.

    Raises:
        UserError: it is none, too small or too large.
    """
    if text is None:
        return None
    try:
        value = int(text.replace(",", "").replace("_", ""))
    except ValueError as error:
        raise _not(flag, text, "error.kind.whole") from error
    if value < least:
        raise user_error("error.limit_ge", config_key=flag, value=text[:60], limit=least)
    if value > most:
        raise user_error("error.limit_le", config_key=flag, value=text[:60], limit=most)
    return value


def number(
    flag: str, text: str | None, above: float | None = None, most: float | None = None
) -> float | None:
    """A finite number above ``above`` and at most ``most``; without ``above`` at least 0.

    Raises:
        UserError: it is none, or out of range.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise _not(flag, text, "error.kind.number") from error
    if not math.isfinite(value):
        raise _not(flag, text, "error.kind.number")
    if above is not None and value <= above:
        raise user_error("error.limit_gt", config_key=flag, value=text, limit=f"{above:g}")
    if above is None and value < 0:
        raise user_error("error.limit_ge", config_key=flag, value=text, limit=0)
    if most is not None and value > most:
        raise user_error("error.limit_le", config_key=flag, value=text, limit=f"{most:g}")
    return value


def size(flag: str, text: str | None, least: int = 1) -> int | None:
    """Bytes such as ``12GiB``.

    Raises:
        UserError: not a size, or too small.
    """
    if text is None:
        return None
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise size_error(flag, text) from error
    if value < least:
        raise user_error("error.limit_ge", config_key=flag, value=text, limit=least)
    return value


def choice(flag: str, text: str | None, choices: Sequence[str]) -> str | None:
    """One of ``choices``.

    Raises:
        UserError: it is none of them.
    """
    if text is not None and text not in choices:
        raise user_error(
            "error.not_a_choice", config_key=flag, value=text, choices=", ".join(choices)
        )
    return text


def several(
    flag: str, text: str | None, read: Callable[[str, str], T | None]
) -> tuple[T, ...] | None:
    """Values between commas, each once, in the order in which they were given.

    Raises:
        UserError: nothing between the commas, or whatever ``read`` raises.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise user_error("error.empty", config_key=flag)
    values = (read(flag, part) for part in parts)
    return tuple(dict.fromkeys(value for value in values if value is not None))


def rate(flag: str, text: str | None) -> tuple[float | None, float | None]:
    """Requests a second, or with an x at the end a factor: ``(rate, factor)``.

    Raises:
        UserError: not a number above 0.
    """
    if text is None:
        return None, None
    if text.lower().endswith("x"):
        return None, number(flag, text[:-1], above=LEAST_RATE, most=1 / LEAST_RATE)
    return number(flag, text, above=LEAST_RATE), None


def _not(flag: str, text: str, kind: str) -> Exception:
    return user_error("error.not_a_kind", config_key=flag, value=text[:60], kind=message(kind))
