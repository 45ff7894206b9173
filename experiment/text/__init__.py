"""Message catalogues: ``en.toml`` and ``zh.toml`` hold the same keys with the same placeholders.

A placeholder may name the format of its value: ``{size:bytes}``, ``{share:percent}``,
``{time:seconds}``, ``{n:count}``, ``{factor:ratio}``. None becomes a dash in every format.
"""

from __future__ import annotations

import locale
import os
import re
import string
import tomllib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from experiment.text.messages import Message

LANGUAGES = ("en", "zh")
DASH = "—"
# User and password in front of a URL's host.
URL_USER = r"://[^\s/?#\"<>]*@"
# Control characters except line feed and tab, bidirectional marks and overrides, other line breaks,
# lone surrogates and noncharacters.
STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Translator:
    """Render messages in one language.

    Raises:
        KeyError: the key is in no catalogue.
    """

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self._texts = catalogue(lang)

    def __call__(self, key: str, **params: Any) -> str:
        """Render the text under ``key``."""
        return _FORMATTER.vformat(self._texts[key], (), params)

    def message(self, text: Message) -> str:
        """Render a stored message; parameters that are messages are rendered first."""
        params = {name: self._value(value) for name, value in text.params.items()}
        return self(text.key, **params)

    def has(self, key: str) -> bool:
        """Whether the catalogue holds ``key``."""
        return key in self._texts

    def _value(self, value: Any) -> Any:
        if isinstance(value, Message):
            return self.message(value)
        if isinstance(value, Mapping) and set(value) == {"key", "params"}:
            return self.message(Message.model_validate(value))
        return value


@cache
def catalogue(lang: str) -> Mapping[str, str]:
    """All texts of a language, by dotted key."""
    data = resources.files(__package__).joinpath(f"{lang}.toml").read_text(encoding="utf-8")
    return dict(_flatten(tomllib.loads(data), ""))


def detect_language(environ: Mapping[str, str] | None = None) -> str:
    """Language of the user's locale: ``zh`` or ``en``; ``en`` for any other locale."""
    env = os.environ if environ is None else environ
    for name in ("PAGEDKV_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = env.get(name)
        if value:
            return "zh" if value.lower().startswith("zh") else "en"
    name = locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


def format_bytes(value: float | None) -> str:
    """Format bytes in binary units: 144 MiB, 1.50 GiB, 73,728 B."""
    if value is None:
        return DASH
    size = float(value)
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        # Switch to the next unit at 1,000, which limits a figure to 6 digits and its unit.
        if abs(size) >= scale * 1000 / 1024:
            scaled = size / scale
            if scaled == int(scaled):
                return f"{scaled:,.0f} {unit}"
            return f"{scaled:,.{1 if abs(scaled) >= 100 else 2}f} {unit}"
    return f"{size:,.0f} B"


def readable(text: str) -> str:
    r"""Escape characters that control a terminal or change the text direction: ESC is ``\x1b``."""
    return STEERING.sub(lambda sign: repr(sign[0])[1:-1], text)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return DASH
        writer = _WRITERS.get(format_spec)
        if writer is not None:
            return writer(value)
        if isinstance(value, str):
            value = readable(re.sub(URL_USER, "://", value))
        return format(value, format_spec)


def format_seconds(value: float | None) -> str:
    """Format a time with at least 3 digits: 0.231 ms, 34.9 ms, 272 ms, 1.86 s, 12.80 s, 246 s."""
    if value is None:
        return DASH
    if not value:
        return "0 s"
    if abs(value) >= 0.9995:
        return f"{value:.2f} s" if abs(value) < 100 else f"{value:,.0f} s"
    thousandths = abs(value) * 1000
    digits = sum(thousandths < limit for limit in (99.95, 9.995, 0.9995))
    return f"{value * 1000:.{digits}f} ms"


_WRITERS: dict[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "percent": lambda value: f"{value * 100:,.1f} %",
    "fine_percent": lambda value: f"{value * 100:,.2f} %",
    "signed_percent": lambda value: f"{value * 100:+,.2f} %",
    "seconds": format_seconds,
    "count": lambda value: f"{value:,}",
    "ratio": lambda value: f"{value:.2f}",
    "rate": lambda value: f"{value:,.1f}",
}
_FORMATTER = _Formatter()


def _flatten(table: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in table.items():
        if isinstance(value, Mapping):
            rows += _flatten(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + name, str(value)))
    return rows
