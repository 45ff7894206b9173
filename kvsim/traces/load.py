"""A trace file as a stream of requests; rejected rows are counted with their position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kvsim.traces.detect import identify
from kvsim.traces.formats import ParseContext, Turns
from kvsim.traces.opening import Hashed, open_trace
from kvsim.traces.parse import BadRowError, Raw
from kvsim.traces.rows import Placed, csv_rows, json_column_rows, json_list_rows, jsonl_rows
from kvsim.traces.types import (
    LONGEST_NS,
    NANOSECONDS,
    BadRowPolicy,
    Place,
    Rejection,
    TraceError,
    TraceInfo,
    TraceRequest,
    UnitDoubt,
)

# Requests per second, or seconds per request, beyond which a time unit is implausible.
_MAX_RATE, _MAX_GAP_S = 250, 100


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read a file.

    Attributes:
        format: a name of :data:`kvsim.traces.formats.FORMATS`; None: detect it.
        unit: ``s``, ``ms``, ``us`` or ``ns``; None: that of the format.
        block_size: tokens in a block of hash ids; None: that of the format, or detect it.
        policy: ``strict`` stops at the first bad row, ``skip`` counts it and continues.
        most: accepted requests beyond which the file is refused; None: no limit.
        count_tokens, output_tokens, turns: see :class:`kvsim.traces.formats.ParseContext`.
    """

    format: str | None = None
    unit: str | None = None
    block_size: int | None = None
    policy: BadRowPolicy = "strict"
    most: int | None = None
    count_tokens: Callable[[str], int] | None = None
    output_tokens: int | None = None
    turns: Turns = "first"


class TraceFile:
    """Requests of a file; each iteration reads it again, and ``info`` is of the latest one.

    Where a consumer stops early, the rest of the file is counted and hashed.

    Raises:
        TraceError: see :func:`kvsim.traces.detect.identify`; ``tokens_needed``: the format has
            texts and ``count_tokens`` is missing; while iterating ``bad_row`` (strict), with
            ``line``, ``reason`` and ``value``; ``empty``; ``nothing_accepted``; ``not_json``;
            ``too_many``, with ``most``.
    """

    def __init__(self, path: Path, options: ReadOptions | None = None) -> None:
        self.path = path
        self.options = options = options or ReadOptions()
        self.kind = identify(path, options.format, options.unit, options.block_size)
        if self.kind.format.texts and options.count_tokens is None:
            raise TraceError("tokens_needed", file=str(path), format=self.kind.format.name)
        self._begin()

    def _begin(self) -> None:
        self._context = ParseContext(
            unit=self.kind.unit,
            block_size=self.kind.block_size,
            count_tokens=self.options.count_tokens,
            output_tokens=self.options.output_tokens,
            turns=self.options.turns,
        )
        self._rows = self._accepted = self._unread = self._latest = 0
        self._rejected: Counter[str] = Counter()
        self._first: dict[str, tuple[Place, str]] = {}
        self._origin: int | None = None
        self._bytes: int | None = None
        self._sha256: str | None = None

    @property
    def info(self) -> TraceInfo:
        """Info of the latest pass, complete at its end."""
        kind, first = self.kind, self._first
        rejected = (
            Rejection(
                reason, count, first[reason][0].line, first[reason][1], first[reason][0].entry
            )
            for reason, count in self._rejected.items()
        )
        return TraceInfo(
            name=self.path.name,
            format=kind.format.name,
            format_source=kind.format_source,
            unit=kind.unit,
            unit_source=kind.unit_source,
            block_size=kind.block_size,
            block_size_source=kind.block_size_source,
            rows=self._rows,
            accepted=self._accepted,
            unread_rows=self._unread,
            rejected=tuple(rejected),
            ignored={name: count for name, count in self._context.ignored.items() if count},
            bytes=self._bytes,
            sha256=self._sha256,
            origin_ns=self._origin,
            span_ns=self._latest - self._origin if self._origin is not None else None,
            unit_doubt=self._unit_doubt(),
        )

    def _unit_doubt(self) -> UnitDoubt | None:
        if self.kind.unit in (None, "date") or self._origin is None:
            return None
        if self._context.fractions:
            return "fractions"
        span, gaps = self._latest - self._origin, self._accepted - 1
        if gaps * NANOSECONDS > _MAX_RATE * span > 0:
            return "fast"
        return "slow" if gaps and span > _MAX_GAP_S * gaps * NANOSECONDS else None

    def __iter__(self) -> Iterator[TraceRequest]:
        self._begin()
        with open_trace(self.path) as (hashed, stream):
            rows = self._read(stream)
            try:
                for place, row in rows:
                    if row is None:
                        self._context.ignored["blank_lines"] += 1
                    else:
                        yield from self._row(place, row)
            except GeneratorExit:
                self._count_rest(rows)
                self._hash_rest(hashed)
                raise
            self._hash_rest(hashed)
        if not self._accepted:
            raise self._nothing()

    def _count_rest(self, rows: Iterator[Placed]) -> None:
        """Count the remaining rows; a damaged rest counts as one."""
        try:
            for _, row in rows:
                if row is None:
                    self._context.ignored["blank_lines"] += 1
                else:
                    self._unread += 1
        except TraceError:
            self._unread += 1

    def _hash_rest(self, hashed: Hashed) -> None:
        self._sha256 = hashed.drain()
        self._bytes = hashed.passed

    def _read(self, stream: IO[bytes]) -> Iterator[Placed]:
        format_ = self.kind.format
        if format_.container == "csv":
            return csv_rows(stream, self.path, format_.keys, format_.name)
        if format_.container == "json":
            return json_list_rows(stream, self.path)
        if format_.container == "columns":
            assert format_.clock is not None
            return json_column_rows(stream, self.path, format_.keys, format_.clock)
        return jsonl_rows(stream, self.path)

    def _row(self, place: Place, row: dict[str, Any] | BadRowError) -> Iterator[TraceRequest]:
        self._rows += 1
        try:
            if isinstance(row, BadRowError):
                raise row
            # A row is accepted as a whole or not at all.
            for raw in list(self.kind.format.parse(row, self._context)):
                yield self._accept(raw)
        except BadRowError as error:
            if self.options.policy == "strict":
                raise TraceError(
                    "bad_row", file=str(self.path), reason=error.reason, value=error.value,
                    **place.params(),
                ) from error  # fmt: skip
            self._rejected[error.reason] += 1
            self._first.setdefault(error.reason, (place, error.value))

    def _accept(self, raw: Raw) -> TraceRequest:
        time = raw.time_ns or 0
        if self._origin is None:
            self._origin = self._latest = time
        if time < self._latest:
            raise BadRowError("clock_backwards", f"{(self._latest - time) / NANOSECONDS:g} s")
        arrival = time - self._origin
        if arrival > LONGEST_NS:
            raise BadRowError("time_too_late", f"{arrival / NANOSECONDS:g} s")
        self._latest = time
        if self._accepted == self.options.most:
            raise TraceError("too_many", file=str(self.path), most=self.options.most)
        size = self.kind.block_size if raw.hash_ids is not None else None
        self._accepted += 1
        return TraceRequest(self._accepted - 1, arrival, raw.prompt, raw.output, raw.hash_ids, size)

    def _nothing(self) -> TraceError:
        if not self._first:
            return TraceError("empty", file=str(self.path))
        reason, (place, value) = next(iter(self._first.items()))
        return TraceError(
            "nothing_accepted", file=str(self.path), rows=self._rows, reason=reason, value=value,
            **place.params(),
        )  # fmt: skip
