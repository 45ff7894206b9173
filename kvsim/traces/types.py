"""Data types of traces: requests, info about reading, rejections, and errors with a position.

    file ─► rows ─► parse ─► check ─► TraceRequest ...        (streamed)
              │       └───────┴─────► Rejection per reason    (counted, first line kept)
              └─ sha256, rows, unit, block size ────────────► TraceInfo

A :class:`TraceError` has a code and parameters, no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from kvsim.base.coded_error import CodedError

NANOSECONDS = 1_000_000_000

BadRowPolicy = Literal["strict", "skip"]
Source = Literal["declared", "detected", "format", "none"]
UnitDoubt = Literal["fractions", "fast", "slow"]


# All codes of TraceError and all reasons for rejecting a row; translation keys.
ERROR_CODES = (
    "bad_block_size", "bad_row", "block_size_needed", "clock_too_long", "content_after_list",
    "empty", "json_lines_needed", "near_format", "no_block_size_fits", "no_clock", "no_details",
    "no_such_format", "no_such_unit", "not_json", "not_utf8", "nothing_accepted", "other_format",
    "row_endless", "tokens_needed", "too_many", "unit_needed", "unknown_format",
    "unreadable",
)  # fmt: skip
REASONS = (
    "clock_backwards", "columns", "conversations_missing", "hash_ids_not_a_list",
    "hash_ids_not_of_that_length", "no_duration", "not_an_object", "not_json", "not_utf8",
    "output_missing", "output_not_a_number", "output_not_positive", "output_tokens_needed",
    "output_too_large",
    "prompt_missing", "prompt_not_a_number", "prompt_not_positive", "prompt_too_large",
    "sub_requests_not_supported", "text_missing", "time_missing",
    "time_not_a_date", "time_not_a_number", "time_too_late", "too_few_turns",
)  # fmt: skip


# Range of a clock: 146 years in nanoseconds, which sums in 64 bits cannot overflow.
LONGEST_NS = 1 << 62


class TraceError(CodedError):
    """A trace cannot be read.

    Attributes:
        code: one of :data:`ERROR_CODES`.
        params: values for the message; ``file``, and the known parts of :class:`Place`.
    """


class TraceRequest(NamedTuple):
    """One request of a trace.

    Attributes:
        id: index among the accepted requests, from 0.
        arrival_ns: nanoseconds after the first accepted request; 0 for all in a trace without
            a clock.
        prompt_tokens: at least 1.
        output_tokens: at least 1.
        hash_ids: an id for each block of the prompt, chained over the prefix: equal ids mean
            equal prompts up to the end of that block. None if the trace has none.
        hash_block_size: tokens in a block of ``hash_ids``; the last block may be shorter.
        samples: sequences generated from the prompt.
        priority: a smaller number is more urgent (priority policy only).
    """

    id: int
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None
    hash_block_size: int | None = None
    samples: int = 1
    priority: int = 0

    @property
    def arrival_s(self) -> float:
        """Seconds after the first accepted request."""
        return self.arrival_ns / NANOSECONDS


class Place(NamedTuple):
    """A position in a file; all counts start at 1.

    Attributes:
        line: line number.
        entry: element number of a JSON list.
        column: of the error, in characters.
    """

    line: int
    entry: int | None = None
    column: int | None = None

    def params(self) -> dict[str, int]:
        """Return the known parts as parameters of a :class:`TraceError`."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Rows rejected for one reason: their number, and the position and value of the first."""

    reason: str
    count: int
    first_line: int
    first_value: str
    first_entry: int | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of a trace, with its parameters."""

    kind: str
    params: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Provenance of a trace, reported with all results that use it.

    Attributes:
        name: name of the file or the generator.
        format: see :data:`kvsim.traces.formats.FORMATS`; ``generated`` for synthetic ones.
        unit: of the file's times; None if the format has no clock.
        block_size: tokens in a block of ``hash_ids``; None without them.
        rows: data rows read, rejected ones included, without header and blank lines.
        accepted: requests yielded.
        unread_rows: rows after the last one asked for; after an error, the rest of a list counts
            as one. With ``rows`` they are all of the file.
        unit_doubt: why the unit is implausible: times in ms, us or ns have fractions
            (``fractions``), more than 250 requests per second (``fast``), or fewer than one per
            100 seconds (``slow``).
        ignored: unused parts of accepted rows, by name.
        sha256: of the file's bytes, or of the sampled numbers; None before the end.
        origin_ns: the time subtracted from every arrival; since the epoch for dates.
        span_ns: from the first to the last accepted arrival; None without a request.
        seed: of a synthetic trace.
        edits: in order.
    """

    name: str
    format: str
    format_source: Source
    unit: str | None
    unit_source: Source
    block_size: int | None
    block_size_source: Source
    rows: int = 0
    accepted: int = 0
    unread_rows: int = 0
    rejected: tuple[Rejection, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    bytes: int | None = None
    sha256: str | None = None
    origin_ns: int | None = None
    span_ns: int | None = None
    unit_doubt: UnitDoubt | None = None
    seed: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    edits: tuple[Edit, ...] = ()

    @property
    def has_clock(self) -> bool:
        """Whether requests have arrival times."""
        return self.unit is not None

    def to_json(self) -> dict[str, Any]:
        """Return JSON data."""
        return asdict(self)


class RequestStream(Protocol):
    """Requests in order of arrival, iterable repeatedly; ``info`` is complete after a pass."""

    @property
    def info(self) -> TraceInfo:
        """Info so far."""

    def __iter__(self) -> Iterator[TraceRequest]: ...
