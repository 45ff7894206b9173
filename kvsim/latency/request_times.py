"""Calibration from the times of requests, for benchmarks that do not record steps.

    queued   scheduled   first token                         last token
      |---------|-----------|------------------------------------|
        queue     prefill        output - 1 decode steps

The average load of a step is known from the other requests: concurrent decodes, their context, and
prompt tokens computed meanwhile. The models are

    decode    seconds per step    =  fixed + per decode + per K and V slot read + per prompt token
    prefill   first - scheduled   =  fixed + own prompt + other prompts + concurrent decodes

Loads are averages over time, not over steps. With few requests and very different steps, costs
shift between coefficients while their sum stays right. Errors are those of durations under the
recorded load, not of a simulation that has to predict the load.

Concurrent requests share steps, so held-out requests are not fully independent. ``forward`` is: it
predicts requests that began after all requests of the fit had ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.latency.calibrate import (
    Calibration,
    FitError,
    constant_error,
    cross_validated,
    fit_error,
    relative_fit,
)
from kvsim.latency.nnls import Floats
from kvsim.latency.roofline import LinearLatency
from kvsim.traces.opening import open_trace
from kvsim.traces.parse import BadRowError, scaled_time, tokens
from kvsim.traces.rows import jsonl_rows
from kvsim.traces.types import NANOSECONDS, Rejection, TraceError

_TIMES = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_CHUNK_ROWS = 256
# Fewest requests before and after the split of the forward error.
_MIN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of a recorded run; times in seconds on one clock."""

    prompt_tokens: int
    output_tokens: int
    queued_s: float
    scheduled_s: float
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class PrefillCosts:
    """Costs of the time from scheduling to the first token, in seconds."""

    fixed_s: float
    per_own_token_s: float
    per_other_token_s: float
    per_decode_s: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Prefill costs and their errors, see :class:`kvsim.latency.calibrate.Calibration`."""

    costs: PrefillCosts
    fit: FitError
    held_out: FitError
    constant: FitError
    folds: int


@dataclass(frozen=True, slots=True)
class RequestCalibration:
    """Result of a calibration from request times.

    Attributes:
        decode: seconds per decode step under the load around it.
        prefill: seconds from scheduling to the first token.
        decode_forward, prefill_forward: errors on requests that began after all requests of the
            fit had ended; None with too few of them.
        single_token: requests with one output token, which have no decode step.
    """

    decode: Calibration[LinearLatency]
    prefill: PrefillFit
    decode_forward: FitError | None
    prefill_forward: FitError | None
    requests: int
    single_token: int


def read_request_records(path: Path) -> tuple[list[RequestRecord], tuple[Rejection, ...]]:
    """Read a benchmark's JSONL of requests; return the records and the rejected rows.

    Rows need ``input_toks``, ``output_toks``, ``queued_ts``, ``scheduled_ts``,
    ``first_token_ts`` and ``last_token_ts`` (seconds).

    Raises:
        TraceError: ``unreadable``; ``blank``; ``nothing_accepted``.
    """
    records: list[RequestRecord] = []
    refused: dict[str, list[Any]] = {}
    with open_trace(path) as (_, stream):
        for place, row in jsonl_rows(stream, path):
            if row is None:
                continue
            try:
                if isinstance(row, BadRowError):
                    raise row
                records.append(_record(row))
            except BadRowError as error:
                refused.setdefault(error.reason, [0, place.line, error.value])[0] += 1
    if not records:
        raise TraceError("nothing_accepted", file=str(path), reasons=", ".join(refused))
    return records, tuple(Rejection(reason, *found) for reason, found in refused.items())


def _record(row: dict[str, Any]) -> RequestRecord:
    prompt = tokens(row.get("input_toks"), "prompt")
    output = tokens(row.get("output_toks"), "output")
    times = [scaled_time(row.get(name), "s") / NANOSECONDS for name in _TIMES]
    if times != sorted(times):
        raise BadRowError("clock_backwards", times)
    if times[2] <= times[1] or (output > 1 and times[3] <= times[2]):
        raise BadRowError("no_duration", times)
    return RequestRecord(prompt, output, *times)


def calibrate_requests(records: Sequence[RequestRecord], folds: int = 5) -> RequestCalibration:
    """Fit decode and prefill; folds are blocks in order of arrival.

    Takes time quadratic in the number of records.

    Raises:
        ValueError: too few records.
    """
    ordered = sorted(records, key=lambda record: record.queued_s)
    table = _RequestColumns(ordered)
    several = table.output > 1
    steps = table.output[several] - 1
    seconds = (table.last - table.first)[several] / steps
    decode_columns = table.decode_columns()[several]
    decode = _fit(decode_columns, seconds, folds)
    fixed, decodes, read, prompts = (float(each) for each in decode[0])
    latency = LinearLatency(fixed, prompts, decodes, read)
    prefill_columns, prefill_seconds = table.prefill_columns(), table.first - table.scheduled
    prefill = _fit(prefill_columns, prefill_seconds, folds)
    costs = PrefillCosts(*(float(each) for each in prefill[0]))
    return RequestCalibration(
        Calibration(latency, *decode[1:], folds),
        PrefillFit(costs, *prefill[1:], folds),
        _forward(decode_columns, seconds, table.first[several], table.last[several]),
        _forward(prefill_columns, prefill_seconds, table.scheduled, table.first),
        len(ordered),
        int((~several).sum()),
    )


def _fit(
    columns: Floats, seconds: Floats, folds: int
) -> tuple[Floats, FitError, FitError, FitError]:
    found = relative_fit(columns, seconds)
    held_out = cross_validated(columns, seconds, folds, relative_fit)
    return (
        found,
        fit_error(columns @ found, seconds),
        fit_error(held_out, seconds),
        constant_error(seconds, folds),
    )


def _forward(columns: Floats, seconds: Floats, begin: Floats, end: Floats) -> FitError | None:
    """Return the error on requests that began after a split, of a fit to those ended before it.

    The split balances the number of requests on both sides.
    """
    moments = np.sort(end)
    before = np.searchsorted(moments, moments, "right")
    after = len(begin) - np.searchsorted(np.sort(begin), moments, "right")
    best = int(np.argmax(np.minimum(before, after)))
    past, future = end <= moments[best], begin > moments[best]
    if min(past.sum(), future.sum()) < _MIN_REQUESTS:
        return None
    return fit_error(columns[future] @ relative_fit(columns[past], seconds[past]), seconds[future])


class _RequestColumns:
    """Requests as columns, and the load during each."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(record, name) for record in records], np.float64)

        self.prompt, self.output = column("prompt_tokens"), column("output_tokens")
        self.scheduled, self.first = column("scheduled_s"), column("first_s")
        self.last = column("last_s")
        # Decoded tokens per second and prompt tokens per second of each request.
        span = self.last - self.first
        self.decode_rate = np.divide(self.output - 1, span, out=np.zeros_like(span), where=span > 0)
        self.prefill_rate = self.prompt / (self.first - self.scheduled)

    def decode_columns(self) -> Floats:
        """Return [requests, 4]: 1, and mean decodes, slots read, prompt tokens per step."""
        columns = np.ones((len(self.prompt), 4))
        steps = np.maximum(self.output - 1, 1)
        for rows in self._chunks():
            begin, end = self.first[rows], self.last[rows]
            length = np.maximum(end - begin, 1e-12)
            overlap, middle = _overlap(begin, end, self.first, self.last)
            context = self.prompt + self.decode_rate * (middle - self.first)
            computed, _ = _overlap(begin, end, self.scheduled, self.first)
            columns[rows, 1] = overlap.sum(1) / length
            columns[rows, 2] = (overlap * context).sum(1) / length
            columns[rows, 3] = (computed * self.prefill_rate).sum(1) / steps[rows]
        return columns

    def prefill_columns(self) -> Floats:
        """Return [requests, 4]: 1, own prompt, other prompt tokens, concurrent decodes."""
        columns = np.ones((len(self.prompt), 4))
        columns[:, 1] = self.prompt
        for rows in self._chunks():
            begin, end = self.scheduled[rows], self.first[rows]
            computed, _ = _overlap(begin, end, self.scheduled, self.first)
            overlap, _ = _overlap(begin, end, self.first, self.last)
            columns[rows, 2] = (computed * self.prefill_rate).sum(1) - self.prompt[rows]
            columns[rows, 3] = overlap.sum(1) / (end - begin)
        # Zero the rounding error of the subtraction.
        columns[:, 2] = np.where(columns[:, 2] < 1e-6 * self.prompt, 0.0, columns[:, 2])
        return columns

    def _chunks(self) -> list[slice]:
        count = len(self.prompt)
        return [slice(at, min(at + _CHUNK_ROWS, count)) for at in range(0, count, _CHUNK_ROWS)]


def _overlap(begin: Floats, end: Floats, other: Floats, until: Floats) -> tuple[Floats, Floats]:
    """Return the seconds of overlap of each pair [rows, others], and its midpoint."""
    low = np.maximum(begin[:, None], other[None, :])
    high = np.minimum(end[:, None], until[None, :])
    return np.maximum(high - low, 0.0), (low + high) / 2
