"""What of a step's work the requests needed.

Rows that have ended, and positions that were computed before, are left out.

    chunk of a request     positions 0 ... 9      computed before: 0 ... 7 (preempted since)
    useful                             8 9        at the price of reading the eight before them
    again                  0 ... 7
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from experiment.events import Step
from kvsim.core.step import Chunk


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step that computes something for requests that have not ended.

    ``chunks`` are theirs as planned, ``useful`` what of them was never computed before.
    """

    step: Step
    chunks: tuple[Chunk, ...]
    useful: tuple[Chunk, ...]

    @property
    def seconds(self) -> float:
        """From the beginning of the step to its end."""
        return (self.step.t_ns - self.step.started_ns) / 1e9

    @property
    def again(self) -> int:
        """Positions that were computed once more."""
        return sum(c.count for c in self.chunks) - sum(c.count for c in self.useful)


def each_work(steps: Iterable[Step]) -> Iterator[StepWork]:
    """The steps that compute for somebody, in their order."""
    computed: dict[int, int] = {}
    ended: set[int] = set()
    for step in steps:
        plan = step.plan
        ended.update(finish.request for finish in plan.finished)
        chunks = tuple(chunk for chunk in plan.chunks if chunk.request not in ended)
        if chunks:
            yield StepWork(step, chunks, tuple(_new(chunks, computed)))


def _new(chunks: Iterable[Chunk], computed: dict[int, int]) -> Iterator[Chunk]:
    for chunk in chunks:
        before, end = computed.get(chunk.request, 0), chunk.start + chunk.count
        start = max(chunk.start, before)
        computed[chunk.request] = max(before, end)
        if start < end:
            yield Chunk(chunk.request, start, end - start, chunk.samples)
