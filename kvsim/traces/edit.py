"""Edits of a request stream: first N, tiled to N, another rate, other arrival times.

    source   |a---b--c|
    tiled    |a---b--c|..|a---b--c|..|a---b-        gap: the source's mean inter-arrival time

Every edit is recorded in the info of the edited stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

import numpy as np

from kvsim.traces.distributions import ArrivalProcess
from kvsim.traces.types import (
    LONGEST_NS,
    NANOSECONDS,
    Edit,
    RequestStream,
    TraceError,
    TraceInfo,
    TraceRequest,
)


class _EditedStream:
    """A request stream derived from another one."""

    def __init__(self, source: RequestStream, edit: Edit) -> None:
        self.source = source
        self.edit = edit
        self._accepted = 0
        self._first = self._last = 0

    @property
    def info(self) -> TraceInfo:
        """Info of the source with this edit; counts are of the latest pass."""
        info = self.source.info
        span = self._last - self._first if self._accepted else None
        edits = (*info.edits, self.edit)
        return replace(info, accepted=self._accepted, span_ns=span, edits=edits)

    def __iter__(self) -> Iterator[TraceRequest]:
        self._accepted = 0
        for request in self._requests():
            if not self._accepted:
                self._first = request.arrival_ns
            self._last = request.arrival_ns
            self._accepted += 1
            yield request

    def _requests(self) -> Iterator[TraceRequest]:
        raise NotImplementedError


def _first(source: RequestStream, count: int) -> Iterator[TraceRequest]:
    """Yield the first requests, then close the source so that its info is complete."""
    requests = iter(source)
    yield from islice(requests, count)
    if isinstance(requests, Generator):
        requests.close()


class Head(_EditedStream):
    """The first ``count`` requests."""

    def __init__(self, source: RequestStream, count: int) -> None:
        super().__init__(source, Edit("head", {"requests": count}))
        self.count = count

    def _requests(self) -> Iterator[TraceRequest]:
        yield from _first(self.source, self.count)


class ScaleRate(_EditedStream):
    """The same requests at ``factor`` times the rate.

    Raises:
        TraceError: while reading, ``clock_too_long``: an arrival exceeds the clock's range.
    """

    def __init__(self, source: RequestStream, factor: float) -> None:
        super().__init__(source, Edit("scale_rate", {"factor": factor}))
        self.factor = factor

    def _requests(self) -> Iterator[TraceRequest]:
        for request in self.source:
            arrival = request.arrival_ns / self.factor
            if arrival > LONGEST_NS:
                raise TraceError("clock_too_long", request=request.id)
            yield request._replace(arrival_ns=round(arrival))


class Tile(_EditedStream):
    """The source repeated until there are ``count`` requests, or cut to them.

    Args:
        source: one copy is kept in memory.
        count: requests of the result. Each copy has its own hash ids, so that copies share no
            prefixes.
    """

    def __init__(self, source: RequestStream, count: int) -> None:
        super().__init__(source, Edit("tile", {"requests": count, "fresh_prefixes": 1}))
        self.count = count

    def _requests(self) -> Iterator[TraceRequest]:
        source = list(_first(self.source, self.count))
        span = source[-1].arrival_ns - source[0].arrival_ns
        period = span + (span // (len(source) - 1) if len(source) > 1 else 0)
        held = [each for r in source if r.hash_ids for each in (min(r.hash_ids), max(r.hash_ids))]
        ids = max(held) - min(held) + 1 if held else 0
        done = 0
        while done < self.count:
            copy = done // len(source)
            shift, offset = copy * period, copy * ids
            for request in islice(source, self.count - done):
                hashes = request.hash_ids
                if offset and hashes is not None:
                    hashes = tuple([each + offset for each in hashes])
                fields = (done, request.arrival_ns + shift, *request[2:4], hashes, *request[5:])
                yield TraceRequest._make(fields)
                done += 1


class WithArrivals(_EditedStream):
    """The same requests in the same order at other times, for a trace without a clock.

    Args:
        source: the requests.
        arrivals: nanoseconds, not decreasing; one per request.
        params: origin of the times, for the info.
    """

    def __init__(
        self, source: RequestStream, arrivals: Iterable[int], **params: int | float | str
    ) -> None:
        super().__init__(source, Edit("with_arrivals", params))
        self.arrivals = list(arrivals)

    @property
    def info(self) -> TraceInfo:
        """Info of the source, with a clock in nanoseconds."""
        return replace(super().info, unit="ns", unit_source="declared")

    def _requests(self) -> Iterator[TraceRequest]:
        for request, arrival in zip(self.source, self.arrivals, strict=True):
            yield request._replace(arrival_ns=arrival)


def at_rate(
    stream: RequestStream, rate: float, cv: float, seed: int, about: Mapping[str, float | str]
) -> RequestStream:
    """Return the trace at ``rate`` requests a second: its own times scaled, or sampled ones.

    Args:
        about: parameters of the edit, where times are sampled.
    """
    count = sum(1 for _ in stream)
    span = stream.info.span_ns
    if stream.info.has_clock and span and count > 1:
        return ScaleRate(stream, rate * span / NANOSECONDS / (count - 1))
    random = np.random.Generator(np.random.PCG64(seed))
    times = ArrivalProcess(rate, cv).sample(count, random)
    return WithArrivals(stream, times.tolist(), **about)
