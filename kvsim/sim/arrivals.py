"""Arrived requests and their times: flat arrays with one row per request.

    row          0      1      2      3      4      5   ...
    arrival      |------|------|------|------|------|
                 admitted ─────► head   waiting ──► end    not read from the stream yet

A waiting request is a row number, not an object, which keeps long queues cheap. A request that
can never be served is refused on arrival, counted by reason, and keeps its row.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvsim.latency.clock import ATTOSECONDS, PER_NANOSECOND
from kvsim.traces.types import TraceRequest

_NAN = float("nan")


class Shortfall(NamedTuple):
    """Why a request can never be served: it needs more of a resource than there is."""

    reason: str
    needed: int
    available: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Requests refused for one reason.

    Attributes:
        reason: ``max_length``, ``blocks``, ``slots`` (no piece of the pool is that long), ``seqs``,
            ``tokens``, or ``samples`` (the policy supports one only).
        first: trace id of the first one, which needed ``needed`` of ``available``.
    """

    reason: str
    count: int
    first: int
    needed: int
    available: int


Check = Callable[[int, int, int], Shortfall | None]


class ArrivalQueue:
    """Reads a stream up to the current time and keeps one row per request.

    Args:
        check: takes (prompt tokens, new tokens, samples) and returns why it can never be served.
        keep_ids: keep the hash ids of waiting requests.
        samples: samples of each request; None: as in the stream.
        delay: attoseconds from a request's arrival until the engine has it.

    Attributes:
        most_positions: prompt + new tokens of the longest accepted request.
        scheduled, first_token, finished: seconds since the start; NaN: not yet, or never.
    """

    def __init__(
        self,
        stream: Iterator[TraceRequest],
        check: Check,
        keep_ids: bool = False,
        samples: int | None = None,
        delay: int = 0,
    ) -> None:
        self._delay = delay
        self.arrival_ns = array("q")
        self.prompt = array("l")
        self.output = array("l")
        self.samples = array("i")
        self.priority = array("q")
        self.scheduled = array("d")
        self.first_token = array("d")
        self.finished = array("d")
        self.without_ids = 0
        self.waiting = 0
        self.most_positions = 1
        self._head = 0
        self._stream = stream
        self._check = check
        self._samples = samples
        self._ids: deque[tuple[tuple[int, ...] | None, int | None]] | None = None
        if keep_ids:
            self._ids = deque()
        self._refused: dict[str, Refusal] = {}
        self._next: TraceRequest | None = next(stream, None)
        self.next_arrival_at = self._next_time()

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def refused(self) -> tuple[Refusal, ...]:
        """Refused requests by reason."""
        return tuple(self._refused.values())

    @property
    def num_refused(self) -> int:
        """Number of refused requests."""
        return sum(refusal.count for refusal in self._refused.values())

    def read_until(self, now: int) -> None:
        """Read the requests that have arrived by ``now`` (attoseconds)."""
        while self.next_arrival_at is not None and self.next_arrival_at <= now:
            assert self._next is not None
            self._enter(self._next)
            self._next = next(self._stream, None)
            self.next_arrival_at = self._next_time()

    def pop(self) -> int:
        """Remove and return the row of the longest-waiting request."""
        row = self.peek()
        self._head = row + 1
        self.waiting -= 1
        return row

    def peek(self) -> int:
        """Return the row of the longest-waiting request."""
        while self.output[self._head] < 0:
            self._head += 1
        return self._head

    def pop_ids(self) -> tuple[tuple[int, ...] | None, int | None]:
        """Return the hash ids of the popped request, and their block size."""
        assert self._ids is not None
        return self._ids.popleft()

    def _next_time(self) -> int | None:
        if self._next is None:
            return None
        return self._next.arrival_ns * PER_NANOSECOND + self._delay

    def _enter(self, request: TraceRequest) -> None:
        _, arrival, prompt, output, ids, size, samples, priority = request
        samples = self._samples or samples
        self.arrival_ns.append(arrival)
        self.prompt.append(prompt)
        self.samples.append(samples)
        self.priority.append(priority)
        self.scheduled.append(_NAN)
        self.first_token.append(_NAN)
        self.finished.append(_NAN)
        shortfall = self._check(prompt, output, samples)
        if shortfall is not None:
            self.output.append(-1)
            reason, needed, available = shortfall
            known = self._refused.get(reason, Refusal(reason, 0, request.id, needed, available))
            self._refused[reason] = replace(known, count=known.count + 1)
            return
        self.output.append(output)
        if prompt + output > self.most_positions:
            self.most_positions = prompt + output
        self.waiting += 1
        if self._ids is not None:
            self.without_ids += ids is None
            self._ids.append((ids, size))


def seconds(instant: int) -> float:
    """Convert attoseconds to seconds."""
    return instant / ATTOSECONDS
