"""Share of the machine's limit that an arm reached, computed from its step plans.

    step              bytes to read                      operations to compute
    decode alone      weights once, K and V so far       2 for each weight and row, 4 for each
    with prompts      the same                           number of a query and position attended to

    the last layer    keys and values of every row; everything else only of sampling rows

    least time = the longer of bytes / bandwidth and operations / matrix rate
    share      = Σ least times / Σ measured times

Only useful work counts. Padding of a batch, rows of finished requests and positions recomputed
after a preemption lower the share. Steps with prompts, including recomputed ones, are separate
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
    """Steps of one kind: measured seconds, and the minimum by the machine's limits."""

    steps: int = 0
    seconds: float = 0.0
    least_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Share of the machine's limit; None without steps."""
        return self.least_s / self.seconds if self.seconds else None


@dataclass(frozen=True, slots=True)
class ComputingStep:
    """A step with chunks of unfinished requests.

    ``chunks`` are those chunks as planned, ``useful`` their parts that are computed for the first
    time.
    """

    step: Step
    chunks: tuple[Chunk, ...]
    useful: tuple[Chunk, ...]

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return (self.step.t_ns - self.step.started_ns) / 1e9

    @property
    def again(self) -> int:
        """Number of recomputed positions."""
        return sum(c.count for c in self.chunks) - sum(c.count for c in self.useful)


def computing_steps(steps: Iterable[Step]) -> Iterator[ComputingStep]:
    """Steps with chunks of unfinished requests, in order."""
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
    """Work of the steps with prompts, and of pure decode steps.

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


def fastest(measured: Iterable[MachineLimits]) -> MachineLimits | None:
    """The largest of each rate over several measurements of one machine; None without any."""
    every = list(measured)
    if not every:
        return None
    rates = ("read_bytes_per_s", "flops_per_s")
    return every[0].model_copy(
        update={name: max(getattr(each, name) for each in every) for name in rates}
    )


def least_times(
    chunks: Iterable[Chunk], model: ModelPrepared, limits: MachineLimits
) -> tuple[float, float]:
    """Minimum seconds of a step by memory bandwidth, and by matrix rate.

    In the last layer, rows that sample no token count with their keys and values only.
    """
    rows = sampled = read = pairs = last_pairs = 0
    for chunk in chunks:
        end = chunk.start + chunk.count
        rows += chunk.count
        read += chunk.start  # the step's own writes are still in a cache
        pairs += sum(range(chunk.start + 1, end + 1))  # causal: each query and all positions before
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
