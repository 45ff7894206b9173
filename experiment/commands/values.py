"""Readers: convert a value of the command line to a number, a size or a list."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from experiment.text.errors import unknown, user_error
from experiment.text.messages import message
from experiment.text.sizes import parse_bytes, size_error

T = TypeVar("T")
# One request in eleven days, and a million a second.
MIN_RATE, MAX_RATE = 1e-6, 10**6
# Limit of tokens, requests and blocks: fits int32 arrays.
MOST = 2**31 - 1
_SCALES = {"k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}


def whole(flag: str, text: str, least: int = 1, most: int = MOST) -> int:
    """Parse an integer from ``least`` to ``most``; as by vLLM 8k is 8,000 and 8K is 8,192.

    Raises:
        UserError: no integer, or out of range.
    """
    match = re.fullmatch(r"([0-9]{1,9})([kKmM])", text)
    try:
        value = (
            int(match[1]) * _SCALES[match[2]]
            if match
            else int(text.replace(",", "").replace("_", ""))
        )
    except ValueError as error:
        raise _not_a_kind(flag, text, "error.kind.whole") from error
    return _within(flag, text, value, ge=least, le=most)


def number(flag: str, text: str, above: float | None = None, most: float | None = None) -> float:
    """Parse a finite number above ``above`` (default: at least 0) and at most ``most``.

    Raises:
        UserError: no number, or out of range.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _not_a_kind(flag, text, "error.kind.number")
    return _within(flag, text, value, gt=above, ge=0 if above is None else None, le=most)


def size(flag: str, text: str, least: int = 1) -> int:
    """Parse a size such as ``12GiB`` to bytes.

    Raises:
        UserError: no size, or too small.
    """
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise size_error(flag, text) from error
    return _within(flag, text, value, ge=least)


def choice(flag: str, text: str, choices: Sequence[str]) -> str:
    """Check that a value is one of ``choices``.

    Raises:
        UserError: it is not.
    """
    if text not in choices:
        raise user_error(
            "error.not_a_choice", config_key=flag, value=text, choices=", ".join(choices)
        )
    return text


def known(flag: str, text: str, kind: str, names: Collection[str], see: str | None = None) -> str:  # noqa: ARG001
    """Check that a name is one of ``names``; ``kind`` and ``see`` as of :func:`unknown`.

    Raises:
        UserError: it is not.
    """
    if text not in names:
        raise unknown(kind, text, names, see=see)
    return text


def split(text: str) -> list[str]:
    """The parts between commas, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


def several(flag: str, text: str, read: Callable[[str, str], T]) -> tuple[T, ...]:
    """Parse comma-separated values, without duplicates.

    Raises:
        UserError: an empty list, or from ``read``.
    """
    parts = split(text)
    if not parts:
        raise user_error("error.empty", config_key=flag)
    return tuple(dict.fromkeys(read(flag, part) for part in parts))


def rate(flag: str, text: str) -> tuple[float | None, float | None]:
    """Parse a rate in requests/s, or a factor with the suffix ``x``: ``(rate, factor)``.

    Raises:
        UserError: no positive number.
    """
    if text.lower().endswith("x"):
        return None, number(flag, text[:-1], above=MIN_RATE, most=MAX_RATE)
    return number(flag, text, above=MIN_RATE), None


def _within(flag: str, text: str, value: T, **limits: float | None) -> T:
    """Check limits by the names of :mod:`operator`: ge, gt, le."""
    for name, limit in limits.items():
        if limit is not None and not getattr(operator, name)(value, limit):
            raise user_error(f"error.limit_{name}", config_key=flag, value=text[:60], limit=limit)
    return value


def _not_a_kind(flag: str, text: str, kind: str) -> Exception:
    return user_error("error.not_a_kind", config_key=flag, value=text[:60], kind=message(kind))
