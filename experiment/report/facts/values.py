"""Format values for reports, the same in both languages; unknown stays None."""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from experiment.analysis.experiment_results import Number, Unit
from experiment.text import DASH, STEERING, format_bytes, format_seconds

_MAX_TEXT = 300
# Maximum lengths of a config or command on a page.
_MAX_OF_A_WORD, _MAX_LISTED = 1000, 50

# Unicode categories: control, format, surrogate, private, unassigned, separators of lines.
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def size(value: int | None) -> str | None:
    """Bytes in binary units."""
    return None if value is None else format_bytes(value)


def signed_size(value: int | None) -> str | None:
    """A change of bytes in binary units, with sign."""
    return None if value is None else f"{'+' if value >= 0 else '−'}{format_bytes(abs(value))}"


def count(value: float | None) -> str | None:
    """An integer."""
    return fixed(value, 0)


def percent(value: float | None) -> str | None:
    """A share in percent."""
    return fixed(None if value is None else value * 100, 1, " %")


def decimal(value: float | None) -> str | None:
    """A number with two decimals."""
    return fixed(value, 2)


def rate(value: float | None) -> str | None:
    """A rate per second."""
    return fixed(value, 1)


def seconds(value: float | None) -> str | None:
    """A time in seconds."""
    return None if value is None else format_seconds(value)


def written(value: Number | None, unit: Unit) -> str:
    """A value in its unit; a dash if unknown."""
    return DASH if value is None else _WRITERS[unit](value)


def _digits(value: float) -> int:
    """Decimals for three significant digits."""
    return 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2


_WRITERS: Mapping[Unit, Callable[[Number], str]] = {
    # Shares below 1 % need more decimals.
    "share": lambda value: f"{value * 100:,.{2 if 0 < abs(value) < 0.01 else 1}f} %",
    "bytes": format_bytes,
    "seconds": format_seconds,
    "count": lambda value: f"{value:,.0f}",
    "mean": lambda value: f"{value:,.{_digits(value)}f}",
    "rate": lambda value: f"{value:,.{_digits(value)}f}",
}


def fixed(value: float | None, digits: int, unit: str = "") -> str | None:
    """A number with ``digits`` decimals, and its unit."""
    return None if value is None else f"{value:,.{digits}f}{unit}"


def ranged(
    values: Iterable[float | None], digits: int, unit: str = "", times: int = 1
) -> str | None:
    """Median of the known values, with minimum and maximum if there are several.

    Args:
        unit: suffix of the median.
        times: factor of the values, 100 for shares in percent.
    """
    known = [value * times for value in values if value is not None]
    if not known:
        return None
    middle, low, high = (f"{f(known):,.{digits}f}" for f in (median, min, max))
    return f"{middle}{unit}" if len(known) < 2 else f"{middle}{unit} ({low} … {high})"


def setting(value: Any) -> str:
    """A setting or a property of a machine; a dash if unknown."""
    if value is None:
        return DASH
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return excerpt(text, _MAX_TEXT)


def whole(value: float) -> float:
    """Convert integral floats to integers: 2048.0 is 2048."""
    return int(value) if float(value).is_integer() else value


def excerpt(text: str, limit: int) -> str:
    """Beginning of a text on one line."""
    line = text[: limit + 1].replace("\n", "↵")
    return line[:limit] + "…" if len(line) > limit else line


def shortened(value: Any) -> Any:
    """Shorten long texts and lists for a page; they end in "…"."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_OF_A_WORD else value[:_MAX_OF_A_WORD] + "…"
    if isinstance(value, Mapping):
        return {shortened(name): shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > _MAX_LISTED else []
        return [*map(shortened, value[:_MAX_LISTED]), *more]
    return value


def shell_text(words: Iterable[str]) -> str:
    r"""A command to be pasted into a shell.

    Invisible signs, and signs that change the direction of text, are written as escapes of bash and
    zsh (``$'\u202e'``).
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    return f"$'{''.join(map(_shell_sign, word))}'" if has_invisible([word]) else shlex.quote(word)


def _shell_sign(sign: str) -> str:
    code = ord(sign)
    if sign in "\\'":
        return "\\" + sign
    if not _is_invisible(sign):
        return sign
    if 0xDC80 <= code <= 0xDCFF:  # Python's representation of a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def has_invisible(words: Iterable[str]) -> bool:
    """Whether :func:`shell_text` escapes a sign of these words."""
    return any(map(_is_invisible, "".join(words)))


def _is_invisible(sign: str) -> bool:
    """Whether a sign is invisible: control, format or unassigned, except a line break."""
    return sign != "\n" and unicodedata.category(sign) in _INVISIBLE


def config_text(config: Mapping[str, Any]) -> str:
    """A config as JSON, shortened by :func:`shortened`, with each text on one line."""
    text = json.dumps(shortened(config), ensure_ascii=False, indent=2)
    return STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)
