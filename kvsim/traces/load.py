"""A trace file as a stream of requests; rejected rows are counted with their position."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from kvsim.traces.detect import identify
from kvsim.traces.formats import ParseContext, Turns
from kvsim.traces.opening import open_trace
from kvsim.traces.parse import BadRowError, Raw
from kvsim.traces.rows import Placed, csv_rows, json_column_rows, json_list_rows, jsonl_rows, lines
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
        limit: accepted requests after which to stop (hashing continues); None: no limit.
        most: accepted requests beyond which the file is refused; None: no limit.
        count_tokens, output_tokens, turns: see :class:`kvsim.traces.formats.ParseContext`.
    """

    format: str | None = None
    unit: str | None = None
    block_size: int | None = None
    policy: BadRowPolicy = "strict"
    limit: int | None = None
    most: int | None = None
    count_tokens: Callable[[str], int] | None = None
    output_tokens: int | None = None
    turns: Turns = "first"


class TraceFile:
    """Requests of a file; each iteration reads it again, and ``info`` is of the latest one.

    Raises:
        TraceError: see :func:`kvsim.traces.detect.identify`; ``tokens_needed``: the format has
            texts and ``count_tokens`` is missing; while iterating ``bad_row`` (strict), with
            ``line``, ``reason`` and ``value``; ``empty``; ``nothing_accepted``; ``not_json``;
            ``too_many``, with ``most``.
    """

    def __init__(self, path: Path, options: ReadOptions | None = None) -> None:
        self.path = path
        self.options = options = options or ReadOptions()
        if options.limit is not None and options.limit < 1:
            raise ValueError(f"a limit of {options.limit} requests leaves nothing")
        self.kind = identify(path, options.format, options.unit, options.block_size)
        if self.kind.format.texts and options.count_tokens is None:
            raise TraceError("tokens_needed", file=str(path), format=self.kind.format.name)
        self._reader = _TraceReader(self)

    @property
    def info(self) -> TraceInfo:
        """Info of the latest pass, complete at its end."""
        return self._reader.info()

    def check_rows(self) -> None:
        """Check the number of rows before parsing, if each row is one request or an error.

        Raises:
            TraceError: ``too_many``.
        """
        most, container = self.options.most, self.kind.format.container
        if most is None or self.options.policy != "strict" or container in ("json", "columns"):
            return
        with open_trace(self.path) as (_, stream):
            filled = (line for _, line in lines(stream, self.path) if line.strip())
            if next(islice(filled, most + (container == "csv"), None), None) is not None:
                raise TraceError("too_many", file=str(self.path), most=most)

    def __iter__(self) -> Iterator[TraceRequest]:
        self._reader = _TraceReader(self)
        return self._reader.requests()


class _TraceReader:
    """One pass over the file, and its counts."""

    def __init__(self, trace: TraceFile) -> None:
        self.path, self.options, self.kind = trace.path, trace.options, trace.kind
        self.context = ParseContext(
            unit=self.kind.unit,
            block_size=self.kind.block_size,
            count_tokens=self.options.count_tokens,
            output_tokens=self.options.output_tokens,
            turns=self.options.turns,
        )
        self.rows = self.accepted = 0
        self.unread = 0
        self.rejected: Counter[str] = Counter()
        self.first: dict[str, tuple[Place, str]] = {}
        self.origin: int | None = None
        self.latest = 0
        self.bytes: int | None = None
        self.sha256: str | None = None

    def info(self) -> TraceInfo:
        kind = self.kind
        first = self.first
        rejected = (
            Rejection(
                reason, count, first[reason][0].line, first[reason][1], first[reason][0].entry
            )
            for reason, count in self.rejected.items()
        )
        return TraceInfo(
            name=self.path.name,
            format=kind.format.name,
            format_source=kind.format_source,
            unit=kind.unit,
            unit_source=kind.unit_source,
            block_size=kind.block_size,
            block_size_source=kind.block_size_source,
            rows=self.rows,
            accepted=self.accepted,
            unread_rows=self.unread,
            rejected=tuple(rejected),
            ignored={name: count for name, count in self.context.ignored.items() if count},
            bytes=self.bytes,
            sha256=self.sha256,
            origin_ns=self.origin,
            span_ns=self.latest - self.origin if self.origin is not None else None,
            unit_doubt=self._unit_doubt(),
        )

    def _unit_doubt(self) -> UnitDoubt | None:
        if self.kind.unit in (None, "date") or self.origin is None:
            return None
        if self.context.fractions:
            return "fractions"
        span, gaps = self.latest - self.origin, self.accepted - 1
        if gaps * NANOSECONDS > _MAX_RATE * span > 0:
            return "fast"
        return "slow" if gaps and span > _MAX_GAP_S * gaps * NANOSECONDS else None

    def requests(self) -> Iterator[TraceRequest]:
        with open_trace(self.path) as (hashed, stream):
            rows = self._rows(stream)
            try:
                for place, row in rows:
                    if row is None:
                        self.context.ignored["blank_lines"] += 1
                    elif self.accepted == self.options.limit:
                        self.unread += 1 + self._count(rows)
                        break
                    else:
                        yield from self._row(place, row)
            except GeneratorExit:
                # The consumer has stopped; count and hash the rest of the file.
                self.unread += self._count(rows)
                raise
            finally:
                self.sha256 = hashed.drain()
                self.bytes = hashed.passed
        self._check_end()

    def _count(self, rows: Iterator[Placed]) -> int:
        """Count the remaining rows; a damaged rest counts as one."""
        count = 0
        try:
            for _, row in rows:
                if row is None:
                    self.context.ignored["blank_lines"] += 1
                else:
                    count += 1
        except TraceError:
            count += 1
        return count

    def _rows(self, stream: IO[bytes]) -> Iterator[Placed]:
        format_ = self.kind.format
        if format_.container == "csv":
            return csv_rows(stream, self.path, format_.keys, format_.name)
        if format_.container == "json":
            return json_list_rows(stream, self.path)
        if format_.container == "columns":
            assert format_.clock is not None
            return json_column_rows(stream, self.path, format_.keys, format_.clock)
        return jsonl_rows(stream, self.path)

    def _row(self, place: Place, row: object) -> Iterator[TraceRequest]:
        self.rows += 1
        try:
            if isinstance(row, BadRowError):
                raise row
            assert isinstance(row, dict)
            # A row is accepted as a whole or not at all.
            for raw in list(self.kind.format.parse(row, self.context)):
                if self.accepted == self.options.limit:
                    self.unread += 1
                    return
                yield self._accept(raw)
        except BadRowError as error:
            self._reject(place, error)

    def _accept(self, raw: Raw) -> TraceRequest:
        time = raw.time_ns or 0
        if self.origin is None:
            self.origin = self.latest = time
        if time < self.latest:
            behind = f"{(self.latest - time) / 1e9:g} s"
            raise BadRowError("clock_backwards", behind)
        if time - self.origin > LONGEST_NS:
            raise BadRowError("time_too_late", f"{(time - self.origin) / NANOSECONDS:g} s")
        self.latest = time
        if self.accepted == self.options.most:
            raise TraceError("too_many", file=str(self.path), most=self.options.most)
        size = self.kind.block_size if raw.hash_ids is not None else None
        request = TraceRequest(
            self.accepted, time - self.origin, raw.prompt, raw.output, raw.hash_ids, size
        )
        self.accepted += 1
        return request

    def _reject(self, place: Place, error: BadRowError) -> None:
        if self.options.policy == "strict":
            raise TraceError(
                "bad_row", file=str(self.path), reason=error.reason, value=error.value,
                **place.params(),
            ) from error  # fmt: skip
        self.rejected[error.reason] += 1
        self.first.setdefault(error.reason, (place, error.value))

    def _check_end(self) -> None:
        if self.accepted:
            return
        if not self.rows or not self.first:
            raise TraceError("empty", file=str(self.path))
        reason, (place, value) = next(iter(self.first.items()))
        raise TraceError(
            "nothing_accepted", file=str(self.path), rows=self.rows, reason=reason, value=value,
            **place.params(),
        )  # fmt: skip
