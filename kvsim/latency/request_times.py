"""Times of the requests of a recorded run, as benchmarks of serving write them.

queued            first token                         last token
  |-------------------|------------------------------------|
     queue, prefill          output - 1 decode steps
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.traces.detect import is_bench
from kvsim.traces.formats import BENCH_KEYS, Row
from kvsim.traces.opening import open_trace
from kvsim.traces.parse import BadRowError, scaled_time, tokens
from kvsim.traces.rows import json_column_rows, jsonl_rows
from kvsim.traces.types import LONGEST_NS, NANOSECONDS, Rejection, TraceError

# Tokens per second of one request, above any hardware. Many at such a rate would be replayed for
# minutes; a few may arrive together.
_MOST_RATE, _FEW = 100_000, 10_000
_TIMES = ("queued_ts", "first_token_ts", "last_token_ts")


class RequestRecord(NamedTuple):
    """One request of a recorded run; times in seconds on one clock.

    Attributes:
        gaps_s: between its tokens, where they were recorded.
        cached_tokens: of the prompt, from the prefix cache: they are not computed.
    """

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    first_s: float
    last_s: float
    gaps_s: Sequence[float] = ()
    cached_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that are computed."""
        return self.prompt_tokens - self.cached_tokens


def read_request_records(path: Path) -> tuple[list[RequestRecord], tuple[Rejection, ...]]:
    """Read the requests of a run; return the records and the rejected rows.

    The file is the result of ``vllm bench serve --save-result --save-detailed``, whose clock is the
    client's, or JSONL with ``input_toks``, ``output_toks``, ``queued_ts``, ``first_token_ts`` and
    ``last_token_ts`` (seconds).

    Raises:
        TraceError: ``unreadable``, ``row_endless``, ``not_json``; ``no_details``: no times of
            requests; ``nothing_accepted``.
    """
    records: list[RequestRecord] = []
    refused: dict[str, list[Any]] = {}
    bench = is_bench(path)
    parse = _benched if bench else _recorded
    with open_trace(path) as (_, stream):
        rows = (
            json_column_rows(stream, path, BENCH_KEYS, "start_times")
            if bench
            else jsonl_rows(stream, path)
        )
        for place, row in rows:
            if row is None:
                continue
            try:
                if isinstance(row, BadRowError):
                    raise row
                records.append(parse(row))
            except BadRowError as error:
                refused.setdefault(error.reason, [0, place.line, error.value])[0] += 1
    if not records:
        raise TraceError("nothing_accepted", file=str(path), reasons=", ".join(refused))
    return records, tuple(Rejection(reason, *found) for reason, found in refused.items())


def _recorded(row: Row) -> RequestRecord:
    times = [scaled_time(row.get(name), "s") for name in _TIMES]
    return _record(row.get("input_toks"), row.get("output_toks"), times)


def _benched(row: Row) -> RequestRecord:
    gaps = row["itls"]
    if not isinstance(gaps, array) or min(gaps, default=0.0) < 0:
        raise BadRowError("time_not_a_number", gaps)
    start, first = (scaled_time(row[name], "s") for name in ("start_times", "ttfts"))
    times = [start, start + first, start + first + round(sum(gaps) * NANOSECONDS)]
    return _record(row["input_lens"], row["output_lens"], times)._replace(gaps_s=gaps)


def _record(prompt: object, output: object, times: list[int]) -> RequestRecord:
    after_first = tokens(output, "output") - 1
    if max(map(abs, times)) > LONGEST_NS // 2:
        raise BadRowError("time_too_late", times)
    if times != sorted(times):
        raise BadRowError("clock_backwards", times)
    if times[1] <= times[0] or (after_first and times[2] <= times[1]):
        raise BadRowError("no_duration", times)
    too_fast = after_first * NANOSECONDS > _MOST_RATE * (times[2] - times[1])
    if too_fast and after_first > _FEW:
        raise BadRowError("output_too_large", output)
    queued, first, last = (each / NANOSECONDS for each in times)
    return RequestRecord(tokens(prompt, "prompt"), tokens(output, "output"), queued, first, last)
