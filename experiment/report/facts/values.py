"""Values as the HTML report writes them, the same in both languages; unknown stays None."""

from __future__ import annotations

import json
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from experiment.analysis.experiment_results import Number, Unit
from experiment.text import DASH, STEERING, format_bytes, format_seconds

_MOST_TEXT = 300
# Of a config or a command on a page.
_MOST_OF_A_WORD, _MOST_LISTED = 1000, 50

# Categories of Unicode: control, format, half of a pair, private, unassigned, separators of lines.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


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
    return None if value is None else f"{value * 100:,.1f} %"


def decimal(value: float | None) -> str | None:
    """A number with two digits behind the point."""
    return None if value is None else f"{value:,.2f}"


def rate(value: float | None) -> str | None:
    """Something per second."""
    return None if value is None else f"{value:,.1f}"


def seconds(value: float | None) -> str | None:
    """A time."""
    return None if value is None else format_seconds(value)


def written(value: Number | None, unit: Unit) -> str:
    """A value in its unit; unknown is a dash."""
    return DASH if value is None else _WRITERS[unit](value)


def _digits(value: float) -> int:
    """Behind the point, so that there are three digits: as many as a mean or a rate can tell."""
    return 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2


_WRITERS: Mapping[Unit, Callable[[Number], str]] = {
    # A share below one in a hundred would be left with a single digit, or with none.
    "share": lambda value: f"{value * 100:,.{2 if 0 < abs(value) < 0.01 else 1}f} %",
    "bytes": format_bytes,
    "seconds": format_seconds,
    "count": lambda value: f"{value:,.0f}",
    "mean": lambda value: f"{value:,.{_digits(value)}f}",
    "rate": lambda value: f"{value:,.{_digits(value)}f}",
}


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
    return excerpt(text, _MOST_TEXT)


def whole(value: float) -> float:
    """A whole number as one, as sentences write it: 2048.0 is 2048."""
    return int(value) if float(value).is_integer() else value


def excerpt(text: str, limit: int) -> str:
    """The beginning of a text, on one line."""
    line = text[: limit + 1].replace("\n", "↵")
    return line[:limit] + "…" if len(line) > limit else line


def shortened(value: Any) -> Any:
    """The same as far as a page has room: texts and lists that are cut end in "…"."""
    if isinstance(value, str):
        return value if len(value) <= _MOST_OF_A_WORD else value[:_MOST_OF_A_WORD] + "…"
    if isinstance(value, Mapping):
        return {shortened(name): shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > _MOST_LISTED else []
        return [*map(shortened, value[:_MOST_LISTED]), *more]
    return value


def shell_text(words: Iterable[str]) -> str:
    r"""A command as a person pastes it into a shell, and as it looks there.

    A word with signs that cannot be seen, or that turn the text around them, has these by their
    numbers, in quotes of the form that bash and zsh read (``$'\u202e'``).
    """
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if not unseen([word]):
        return shlex.quote(word)
    return "$'" + "".join(map(_shell_sign, word)) + "'"


def _shell_sign(sign: str) -> str:
    code = ord(sign)
    if sign in "\\'":
        return "\\" + sign
    if not _unseen(sign):
        return sign
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unseen(words: Iterable[str]) -> bool:
    """Whether :func:`shell_text` writes a sign of these words by its number."""
    return any(map(_unseen, "".join(words)))


def _unseen(sign: str) -> bool:
    """Control and format signs, and code points that stand for no sign; a line break is seen."""
    return sign != "\n" and unicodedata.category(sign) in _UNSEEN


def config_text(config: Mapping[str, Any]) -> str:
    """A config as JSON, cut as :func:`shortened` does; any text in it stands on its line."""
    text = json.dumps(shortened(config), ensure_ascii=False, indent=2)
    return STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)
