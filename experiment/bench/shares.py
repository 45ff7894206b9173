"""How near an arm came to the machine's own limit, by its step plans.

    step              bytes that must be read            operations that must be done
    decode alone      weights once, K and V so far       2 for each weight and row, 4 for each
    with prompts      the same                           number of a query and position attended to

    least time = the longer of bytes / bandwidth and operations / matrix rate
    share      = Σ least times / Σ times that the steps took

Only what the requests needed counts: fillers of a padded batch and rows that have ended are the
arm's own waste and make its share smaller. Steps that compute prompts are told from those that
decode alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from experiment.events import MachineLimits, ModelPrepared, Step
from kvsim.step import Chunk, plan_from_json


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


def machine_shares(
    steps: Iterable[Step], model: ModelPrepared, limits: MachineLimits, prompts: dict[int, int]
) -> tuple[Work, Work]:
    """Work of the steps with prompts in them and of those that decode alone.

    Args:
        prompts: prompt tokens of each request.
    """
    prefill, decode = Work(), Work()
    ended: set[int] = set()
    for step in steps:
        plan = plan_from_json(step.plan)
        ended.update(finish.request for finish in plan.finished)
        chunks = [chunk for chunk in plan.chunks if chunk.request not in ended]
        if not chunks:
            continue
        of_prompts = any(chunk.start < prompts[chunk.request] for chunk in chunks)
        work = prefill if of_prompts else decode
        work.steps += 1
        work.seconds += (step.t_ns - step.started_ns) / 1e9
        work.least_s += least_seconds(chunks, model, limits)
    return prefill, decode


def least_seconds(chunks: Iterable[Chunk], model: ModelPrepared, limits: MachineLimits) -> float:
    """The least time of a step, by bandwidth or by matrix rate."""
    rows = sampled = read = pairs = 0
    for chunk in chunks:
        end = chunk.start + chunk.count
        rows += chunk.count
        sampled += chunk.samples
        read += chunk.start  # what the step itself writes is still in a cache
        pairs += sum(range(chunk.start + 1, end + 1))  # a query sees itself and all before it
    weights = limits.matrix_parameters + (limits.output_parameters if sampled else 0)
    size = weights * model.element_bytes + (read + rows) * model.slot_bytes
    products = rows * limits.matrix_parameters + sampled * limits.output_parameters
    operations = 2 * products + 4 * pairs * limits.attention_width
    return max(size / limits.read_bytes_per_s, operations / limits.flops_per_s)
