"""How near an arm came to the machine's own limit, by its step plans.

    step              bytes that must be read            operations that must be done
    decode alone      weights once, K and V so far       2 for each weight and row, 4 for each
    with prompts      the same                           number of a query and position attended to

    the last layer    keys and values of every row; all the rest of rows that give a token

    least time = the longer of bytes / bandwidth and operations / matrix rate
    share      = Σ least times / Σ times that the steps took

Only useful work counts. Padding of a batch, rows of finished requests and positions recomputed
after a preemption lower the share. Steps with prompts, recomputed ones included, are kept apart
from steps that decode alone.

    chunk of a request     positions 0 ... 9      computed before: 0 ... 7 (preempted since)
    useful                             8 9        at the price of reading the eight before them
    again                  0 ... 7
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from experiment.events import MachineLimits, ModelPrepared, Step
from kvsim.core.step import Chunk


@dataclass(slots=True)
class Work:
    """Steps of one kind: seconds that they took, and the least that they could have taken."""

    steps: int = 0
    seconds: float = 0.0
    least_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Of the machine's limit; None where there was no such step."""
        return self.least_s / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class ComputingStep:
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


def computing_steps(steps: Iterable[Step]) -> Iterator[ComputingStep]:
    """The steps that compute for somebody, in their order."""
    computed: dict[int, int] = {}
    ended: set[int] = set()
    for step in steps:
        plan = step.plan
        ended.update(finish.request for finish in plan.finished)
        chunks = tuple(chunk for chunk in plan.chunks if chunk.request not in ended)
        if chunks:
            yield ComputingStep(step, chunks, tuple(_new(chunks, computed)))


def _new(chunks: Iterable[Chunk], computed: dict[int, int]) -> Iterator[Chunk]:
    for chunk in chunks:
        before, end = computed.get(chunk.request, 0), chunk.start + chunk.count
        start = max(chunk.start, before)
        computed[chunk.request] = max(before, end)
        if start < end:
            yield Chunk(chunk.request, start, end - start, chunk.samples)


def machine_shares(
    steps: Iterable[Step], model: ModelPrepared, limits: MachineLimits, prompts: dict[int, int]
) -> tuple[Work, Work]:
    """Work of the steps with prompts in them and of those that decode alone.

    Args:
        prompts: prompt tokens of each request.
    """
    prefill, decode = Work(), Work()
    for each in computing_steps(steps):
        of_prompts = any(chunk.start < prompts[chunk.request] for chunk in each.chunks)
        work = prefill if of_prompts else decode
        work.steps += 1
        work.seconds += each.seconds
        if each.useful:
            work.least_s += max(least_times(each.useful, model, limits))
    return prefill, decode


def fastest(found: Iterable[MachineLimits]) -> MachineLimits | None:
    """What several measurements of one machine come to: of each rate the largest."""
    every = list(found)
    if not every:
        return None
    rates = ("read_bytes_per_s", "flops_per_s")
    return every[0].model_copy(
        update={name: max(getattr(each, name) for each in every) for name in rates}
    )


def least_times(
    chunks: Iterable[Chunk], model: ModelPrepared, limits: MachineLimits
) -> tuple[float, float]:
    """The least seconds of a step by the memory's bandwidth, and by the matrix rate.

    Of the last layer a row that gives no token leaves its keys and values, and nothing else of it
    is needed: no arm has to compute it, whichever do.
    """
    rows = sampled = read = pairs = last_pairs = 0
    for chunk in chunks:
        end = chunk.start + chunk.count
        rows += chunk.count
        read += chunk.start  # what the step itself writes is still in a cache
        pairs += sum(range(chunk.start + 1, end + 1))  # a query sees itself and all before it
        if chunk.samples:
            sampled += 1
            last_pairs += end
    of_tokens = limits.output_parameters + limits.sampled_parameters
    of_rows = limits.matrix_parameters - limits.sampled_parameters
    size = (of_rows + (of_tokens if sampled else 0)) * model.element_bytes
    size += (read + rows) * model.slot_bytes
    last = 1 / model.layers if limits.sampled_parameters else 0
    attended = (1 - last) * pairs + last * last_pairs
    operations = 2 * (rows * of_rows + sampled * of_tokens) + 4 * attended * limits.attention_width
    return size / limits.read_bytes_per_s, operations / limits.flops_per_s
