"""Convert values of the command line to numbers, sizes and lists."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from experiment.text.errors import user_error
from experiment.text.messages import message
from experiment.text.sizes import parse_bytes, size_error

T = TypeVar("T")
# One request in eleven days.
MIN_RATE = 1e-6
# Limit of tokens, requests and blocks: fits int32 arrays.
MOST = 2**31 - 1


def whole(flag: str, text: str | None, least: int = 1, most: int = MOST) -> int | None:
    """Parse an integer from ``least`` to ``most``; None if not given.

    Raises:
        UserError: no integer, or out of range.
    """
    if text is None:
        return None
    try:
        value = _scaled(text) or int(text.replace(",", "").replace("_", ""))
    except ValueError as error:
        raise _not_a_kind(flag, text, "error.kind.whole") from error
    if value < least:
        raise user_error("error.limit_ge", config_key=flag, value=text[:60], limit=least)
    if value > most:
        raise user_error("error.limit_le", config_key=flag, value=text[:60], limit=most)
    return value


_SCALES = {"k": 10**3, "m": 10**6, "K": 1 << 10, "M": 1 << 20}


def _scaled(text: str) -> int | None:
    """A number with a suffix as vLLM reads it: 8k is 8,000 and 8K 8,192; None without one."""
    match = re.fullmatch(r"([0-9]{1,9})([kKmM])", text)
    return int(match[1]) * _SCALES[match[2]] if match else None


def number(
    flag: str, text: str | None, above: float | None = None, most: float | None = None
) -> float | None:
    """Parse a finite number above ``above`` (default: at least 0) and at most ``most``.

    Raises:
        UserError: no number, or out of range.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise _not_a_kind(flag, text, "error.kind.number") from error
    if not math.isfinite(value):
        raise _not_a_kind(flag, text, "error.kind.number")
    if above is not None and value <= above:
        raise user_error("error.limit_gt", config_key=flag, value=text, limit=f"{above:g}")
    if above is None and value < 0:
        raise user_error("error.limit_ge", config_key=flag, value=text, limit=0)
    if most is not None and value > most:
        raise user_error("error.limit_le", config_key=flag, value=text, limit=f"{most:g}")
    return value


def size(flag: str, text: str | None, least: int = 1) -> int | None:
    """Parse a size such as ``12GiB`` to bytes.

    Raises:
        UserError: no size, or too small.
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
    """Check that a value is one of ``choices``.

    Raises:
        UserError: it is not.
    """
    if text is not None and text not in choices:
        raise user_error(
            "error.not_a_choice", config_key=flag, value=text, choices=", ".join(choices)
        )
    return text


def several(
    flag: str, text: str | None, read: Callable[[str, str], T | None]
) -> tuple[T, ...] | None:
    """Parse comma-separated values, without duplicates.

    Raises:
        UserError: an empty list, or from ``read``.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise user_error("error.empty", config_key=flag)
    values = (read(flag, part) for part in parts)
    return tuple(dict.fromkeys(value for value in values if value is not None))


def rate(flag: str, text: str | None) -> tuple[float | None, float | None]:
    """Parse a rate in requests/s, or a factor with the suffix ``x``: ``(rate, factor)``.

    Raises:
        UserError: no positive number.
    """
    if text is None:
        return None, None
    if text.lower().endswith("x"):
        return None, number(flag, text[:-1], above=MIN_RATE, most=1 / MIN_RATE)
    return number(flag, text, above=MIN_RATE), None


def _not_a_kind(flag: str, text: str, kind: str) -> Exception:
    return user_error("error.not_a_kind", config_key=flag, value=text[:60], kind=message(kind))
