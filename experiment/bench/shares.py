"""How near an arm came to the machine's own limit, by its step plans.

    step              bytes that must be read            operations that must be done
    decode alone      weights once, K and V so far       2 for each weight and row, 4 for each
    with prompts      the same                           number of a query and position attended to

    the last layer    keys and values of every row; all the rest of rows that give a token

    least time = the longer of bytes / bandwidth and operations / matrix rate
    share      = Σ least times / Σ times that the steps took

Only what the requests needed counts, see :mod:`experiment.bench.useful`: fillers of a padded batch,
rows that have ended, and positions that are computed once more behind a preemption are the arm's
own waste and make its share smaller. Steps that compute prompts, or compute them again, are told
from those that decode alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiment.bench.useful import each_work
from experiment.events import MachineLimits, ModelPrepared, Step
from kvsim.core.step import Chunk


@dataclass(slots=True)
class Work:
    """Steps of one kind: seconds that they took, and the least that they could have taken.

    ``read_s`` is the time of reading alone, at the memory's bandwidth.
    """

    steps: int = 0
    seconds: float = 0.0
    least_s: float = 0.0
    read_s: float = 0.0

    @property
    def share(self) -> float | None:
        """Of the machine's limit; None where there was no such step."""
        return self.least_s / self.seconds if self.seconds else None

    @property
    def read_share(self) -> float | None:
        """Of the memory's bandwidth; None where there was no such step."""
        return self.read_s / self.seconds if self.seconds else None


def machine_shares(
    steps: Iterable[Step], model: ModelPrepared, limits: MachineLimits, prompts: dict[int, int]
) -> tuple[Work, Work]:
    """Work of the steps with prompts in them and of those that decode alone.

    Args:
        prompts: prompt tokens of each request.
    """
    prefill, decode = Work(), Work()
    for each in each_work(steps):
        of_prompts = any(chunk.start < prompts[chunk.request] for chunk in each.chunks)
        work = prefill if of_prompts else decode
        work.steps += 1
        work.seconds += each.seconds
        if each.useful:
            reading, computing = least_times(each.useful, model, limits)
            work.least_s += max(reading, computing)
            work.read_s += reading
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
