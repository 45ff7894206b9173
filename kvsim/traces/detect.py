"""Detection of a file's format, time unit, and block size of hash ids.

A prompt of L tokens in n blocks of size B requires ``ceil(L / B) == n``. So B is between
``ceil(L / n)`` and ``(L - 1) // (n - 1)``, and a few rows leave one power of two. If they leave
none, some rows may lack the id of their last, partial block.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kvsim.traces.formats import FORMATS, TraceFormat
from kvsim.traces.opening import open_trace
from kvsim.traces.parse import UNITS
from kvsim.traces.rows import (
    json_list_rows,
    jsonl_rows,
    lines,
    load_json,
    require_keys,
    split_csv,
)
from kvsim.traces.types import Source, TraceError

_SAMPLE_ROWS = 200
_SAMPLE_BYTES = 32 << 20
# In the result of ``vllm bench serve``, before its lists; stands for its first line.
_BENCH = '"request_throughput"'


@dataclass(frozen=True, slots=True)
class DetectedFormat:
    """Format, unit and block size of a file, and whether each was declared or detected."""

    format: TraceFormat
    format_source: Source
    unit: str | None
    unit_source: Source
    block_size: int | None
    block_size_source: Source


def identify(
    path: Path, format_name: str | None, unit: str | None, block_size: int | None
) -> DetectedFormat:
    """Detect what is not declared from the first rows of a file.

    Raises:
        TraceError: ``row_endless``, ``unknown_format``, ``other_format``, ``empty``,
            ``unreadable``, ``unit_needed``, ``block_size_needed``, ``no_block_size_fits``,
            ``no_such_format``, ``no_such_unit``,
            ``no_clock``, ``bad_block_size``, ``json_lines_needed``, ``not_json``.
    """
    _check_declared(path, format_name, unit, block_size)
    number, line = _first_line(path)
    sizes = possible_block_sizes(path) if line.startswith("{") else None
    if format_name is not None:
        format_, format_source = FORMATS[format_name], _DECLARED
        _check_first(format_, path, number, line)
    else:
        format_, format_source = _detect(path, number, line, sizes), _DETECTED
    used_unit, unit_source = _unit(format_, path, unit)
    used_size, size_source = _block_size(format_, path, block_size, sizes)
    return DetectedFormat(format_, format_source, used_unit, unit_source, used_size, size_source)


_DECLARED: Source = "declared"
_DETECTED: Source = "detected"


def possible_block_sizes(path: Path) -> tuple[int, ...] | None:
    """Return the powers of two consistent with lengths and hash ids of the first rows.

    Returns None if no row has hash ids.
    """
    with open_trace(path) as (_, stream):
        sample = io.BytesIO(stream.read(_SAMPLE_BYTES))  # its last row may be cut, and is then none
        first = (row for _, row in islice(jsonl_rows(sample, path), _SAMPLE_ROWS))
        return fitting_block_sizes(row for row in first if isinstance(row, dict))


def fitting_block_sizes(sample: Iterable[dict[str, Any]]) -> tuple[int, ...] | None:
    """Return the powers of two consistent with all rows; None if no row has hash ids."""
    low, least, high, found = 1, 1, 1 << 20, False
    for row in sample:
        length, ids = row.get("input_length"), row.get("hash_ids")
        if type(length) is not int or not isinstance(ids, list) or not ids or length < 1:
            continue
        found = True
        low = max(low, -(-length // len(ids)))
        least = max(least, length // (len(ids) + 1) + 1)
        if len(ids) > 1:
            high = min(high, (length - 1) // (len(ids) - 1))
    if not found:
        return None
    powers = [1 << order for order in range(21)]
    whole = tuple(size for size in powers if low <= size <= high)
    return whole or tuple(size for size in powers if least <= size <= high)


def _check_declared(
    path: Path, format_name: str | None, unit: str | None, block_size: int | None
) -> None:
    if format_name is not None and format_name not in FORMATS:
        known = ", ".join(FORMATS)
        raise TraceError("no_such_format", file=str(path), format=format_name, known=known)
    if unit is not None and unit not in UNITS:
        raise TraceError("no_such_unit", file=str(path), unit=unit, known=", ".join(UNITS))
    if block_size is not None and block_size < 1:
        raise TraceError("bad_block_size", file=str(path), block_size=block_size)


def is_bench(path: Path) -> bool:
    """Whether a file is a result of ``vllm bench serve``.

    Raises:
        TraceError: see :func:`identify`.
    """
    return _first_line(path)[1] == _BENCH


def _first_line(path: Path) -> tuple[int, str]:
    with open_trace(path) as (_, stream):
        head = stream.peek(1).removeprefix(codecs.BOM_UTF8)
        if head.startswith(b"["):
            return 1, "["  # the whole list may be on this line
        if head.startswith(b"{") and _BENCH.encode() in head:
            return 1, _BENCH
        for number, data in lines(stream, path):
            try:
                line = data.decode("utf-8-sig").strip()
            except UnicodeDecodeError as error:
                raise TraceError("not_utf8", file=str(path), line=number) from error
            if line:
                return number, line
    raise TraceError("empty", file=str(path))


def _first_object(line: str) -> dict[str, Any]:
    try:
        row = load_json(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _detect(path: Path, number: int, line: str, sizes: tuple[int, ...] | None) -> TraceFormat:
    if line == _BENCH:
        return FORMATS["vllm-bench"]
    if line.startswith("["):
        found = _first_entry(path)
        other = [] if "conversations" in found else _fitting("jsonl", found)
        if other:
            raise TraceError("json_lines_needed", file=str(path), format=other[0].name)
        return FORMATS["sharegpt"]
    if line.startswith("{"):
        kind, found = "jsonl", set(_first_object(line))
    else:
        kind, found = "csv", {value.strip() for value in split_csv(line)}
    fitting = _fitting(kind, found)
    if not fitting:
        raise _unknown(path, number, line, kind, found)
    if fitting[0].name == "mooncake" and (sizes is None or sizes != (512,)):
        return FORMATS["timed-trace"]
    return fitting[0]


def _fitting(kind: str, found: set[str]) -> list[TraceFormat]:
    return [f for f in FORMATS.values() if f.container == kind and found.issuperset(f.keys)]


def _first_entry(path: Path) -> set[str]:
    with open_trace(path) as (_, stream):
        _, row = next(json_list_rows(stream, path), (None, None))
    return set(row) if isinstance(row, dict) else set()


def _unknown(path: Path, number: int, line: str, kind: str, found: set[str]) -> TraceError:
    """Name the format with the fewest missing keys, if at least half of its keys are present."""
    lacking = {f.name: [key for key in f.keys if key not in found] for f in FORMATS.values()
               if f.container == kind}  # fmt: skip
    name = min(lacking, key=lambda each: len(lacking[each]) / len(FORMATS[each].keys))
    near, missing = FORMATS[name], lacking[name]
    if 2 * len(missing) > len(near.keys):
        return TraceError("unknown_format", file=str(path), line=number, found=line[:80])
    return TraceError(
        "near_format", file=str(path), line=number, format=name, missing=", ".join(missing),
        only_clock=missing == [near.clock],
    )  # fmt: skip


def _check_first(format_: TraceFormat, path: Path, number: int, line: str) -> None:
    keys: Sequence[str] = format_.keys
    if format_.container == "csv":
        found = [value.strip() for value in split_csv(line)]
    elif format_.container == "jsonl":
        found = list(_first_object(line))
        # Chat ids and turns identify Qwen-Bailian, but its rows are valid without them.
        keys = [key for key in keys if key not in ("chat_id", "turn")]
    else:
        found, keys = [line[:80]], ["[" if format_.container == "json" else _BENCH]
    require_keys(found, path, number, keys, format_.name)


def _unit(format_: TraceFormat, path: Path, declared: str | None) -> tuple[str | None, Source]:
    if format_.unit is None and not format_.declare_unit:
        if declared is not None:
            raise TraceError("no_clock", file=str(path), format=format_.name, unit=declared)
        return None, "none"
    if declared is not None:
        if format_.unit == "date":
            raise TraceError("no_clock", file=str(path), format=format_.name, unit=declared)
        return declared, _DECLARED
    if format_.unit is None:
        raise TraceError("unit_needed", file=str(path), format=format_.name)
    return format_.unit, "format"


def _block_size(
    format_: TraceFormat, path: Path, declared: int | None, sizes: tuple[int, ...] | None
) -> tuple[int | None, Source]:
    hashed = "input_length" in format_.keys and sizes is not None
    if not hashed:
        return None, "none"
    if declared is not None:
        return declared, _DECLARED
    if format_.block_size is not None:
        return format_.block_size, "format"
    if not sizes:
        raise TraceError("no_block_size_fits", file=str(path))
    if len(sizes) > 1:
        raise TraceError("block_size_needed", file=str(path), possible=", ".join(map(str, sizes)))
    return sizes[0], _DETECTED
