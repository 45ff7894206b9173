"""Values as the HTML report writes them, the same in both languages; unknown stays None."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from statistics import median
from typing import Any

from experiment.i18n import DASH, format_bytes

_MOST_TEXT = 300

# Control signs, halves of pairs, and code points that stand for no sign.
_NEVER_SHOWN = re.compile("[\u007f-\u009f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def size(value: int | None) -> str | None:
    """Bytes in binary units."""
    return None if value is None else format_bytes(value)


def signed_size(value: int | None) -> str | None:
    """A change of bytes in binary units, with its sign."""
    return None if value is None else f"{'+' if value >= 0 else '−'}{format_bytes(abs(value))}"


def count(value: float | None) -> str | None:
    """A whole number."""
    return None if value is None else f"{value:,.0f}"


def percent(value: float | None) -> str | None:
    """A share."""
    return None if value is None else f"{value * 100:.1f} %"


def decimal(value: float | None) -> str | None:
    """A number with two digits behind the point."""
    return None if value is None else f"{value:,.2f}"


def rate(value: float | None) -> str | None:
    """Something per second."""
    return None if value is None else f"{value:,.1f}"


def fixed(value: float | None, digits: int, unit: str = "") -> str | None:
    """A number with so many digits behind the point, and its unit."""
    return None if value is None else f"{value:,.{digits}f}{unit}"


def ranged(
    found: Iterable[float | None], digits: int, unit: str = "", times: int = 1
) -> str | None:
    """The median of what is known, with the smallest and the largest where there are several.

    Args:
        unit: stands behind the median.
        times: what the values are multiplied by, 100 for shares in percent.
    """
    known = [value * times for value in found if value is not None]
    if not known:
        return None
    middle, low, high = (f"{f(known):,.{digits}f}" for f in (median, min, max))
    return f"{middle}{unit}" if len(known) < 2 else f"{middle}{unit} ({low} … {high})"


def setting(value: Any) -> str:
    """A value of a config or of a machine; unknown is a dash."""
    if value is None:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return readable(text, _MOST_TEXT)


def readable(text: str, limit: int) -> str:
    """The beginning of a foreign text with control characters made visible."""
    begun = text[: limit + 1]
    line = "".join(_visible(sign) for sign in begun)
    return line[:limit] + "…" if len(begun) > limit else line


def _visible(sign: str) -> str:
    code = ord(sign)
    if sign == "\n":
        return "↵"
    if code < 0x20:
        return chr(0x2400 + code)
    return "\ufffd" if _NEVER_SHOWN.match(sign) else sign
