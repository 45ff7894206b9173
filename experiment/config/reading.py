"""Read a config: a TOML file, then ``--set``, then flags."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.config.schema import SIZES, Config, make_config, merge_tables, unknown_key
from experiment.files.bounded_reading import read_bounded
from experiment.files.bounds import MAX_KEY_PARTS
from experiment.files.parse_memory import memory_limit
from experiment.text.errors import user_error
from experiment.text.redaction import cleaner, in_values
from experiment.text.sizes import lacks_unit, size_error

MAX_CONFIG_BYTES = 1 << 20
_QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'')
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++\s*+\.\s*+){{{MAX_KEY_PARTS}}}")
_LONG_NUMBER = re.compile(r"0[xob][0-9a-fA-F_]{1000}")


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> Config:
    """Read a TOML file (None: defaults) and apply ``overrides`` (dotted keys).

    Raises:
        UserError: unreadable file, invalid TOML, unknown key or invalid value.
    """
    data = read_toml(path) if path else {}
    _make_quick(data, overrides.get("experiment.size"))
    for key, value in overrides.items():
        set_key(data, key, value)
    for key in SIZES:
        section, _, name = key.partition(".")
        table = data.get(section)
        if isinstance(table, dict) and lacks_unit(table.get(name)):
            raise size_error(key, table[name])
    return make_config(data)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of bounded size.

    Raises:
        UserError: missing, unreadable, too large, or invalid TOML.
    """
    data = read_bounded(path, MAX_CONFIG_BYTES)
    try:
        text = data.decode("utf-8-sig")  # some editors write a BOM
    except UnicodeDecodeError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
    try:
        with memory_limit(path):
            return parse_toml(text)
    except ValueError as error:
        line = _line_of(error, text)
        if line is None:
            raise user_error("error.bad_toml_somewhere", path=str(path)) from error
        raise user_error("error.bad_toml", path=str(path), line=line) from error


def _line_of(error: ValueError, text: str) -> int | None:
    """Line of a TOML error; for unclosed values, the last line that is not empty."""
    place = re.search(r"\(at (?:line (\d+),|end of document)", str(error))
    if place is None:
        return None
    return int(place[1]) if place[1] else text.rstrip().count("\n") + 1


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: invalid TOML, nested too deeply, or a number of thousands of digits.
    """
    if _LONG_NUMBER.search(text):  # Python itself refuses decimal ones
        raise ValueError("a number of thousands of digits")
    if any(map(_has_long_key, text.splitlines())):
        raise ValueError("nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _has_long_key(line: str) -> bool:
    """Whether the text before an ``=``, or a table's header, may be a key of many parts.

    Strings are not excluded, since the parser may delimit them differently.
    """
    keys = line if line.lstrip().startswith("[") else line.rpartition("=")[0]
    return _LONG_KEY.search(_QUOTED.sub("_", keys)) is not None


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse ``key=value`` of ``--set``; the value is TOML if it parses as such, otherwise text.

    Raises:
        UserError: there is no ``=``.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise user_error("error.not_like", config_key="--set", value=text, example="KEY=VALUE")
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except ValueError:
        parsed = value
    return key.strip(), parsed


def _make_quick(data: dict[str, Any], size: Any) -> None:
    """Apply ``[experiment.quick]`` if the quick size is requested."""
    section = data.get("experiment")
    if not isinstance(section, dict) or (size or section.get("size")) != "quick":
        return
    smaller = section.get("quick")
    if isinstance(smaller, dict):
        merge_tables(data, smaller)


def set_key(data: dict[str, Any], key: str, value: Any) -> None:
    """Set a value under a dotted key.

    Raises:
        UserError: there is no such key.
    """
    *parents, last = key.split(".", MAX_KEY_PARTS)
    table = data
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise unknown_key(key)
    table[last] = value


def as_recorded(config: Config) -> dict[str, Any]:
    """A config as recorded in the first line of a log."""
    data: dict[str, Any] = in_values(config.model_dump(mode="json"), cleaner())
    return data
