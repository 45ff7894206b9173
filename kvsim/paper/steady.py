"""A full pool with requests waiting: means over the stretch in which that is so.

waiting  ▇▇▇▇▇▇▇▇▅▅▃▃▁ . . .          all requests are there at once
         | |          |  runs empty: not counted
         | from here: the first requests, which all began together, have gone
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.paper.workloads import BUDGET, MAX_LENGTH, SLOT_BYTES
from kvsim.sim.config import PolicyName, SimConfig
from kvsim.sim.metrics import SimResult
from kvsim.sim.simulator import simulate
from kvsim.traces.generate import Generated

# In mean outputs, a token of each being a step.
_WARM_UP = 3
# vLLM's first versions: 2,560 tokens in a step; one block in a hundred is not given to newcomers.
_BATCHED_TOKENS = 2560
_WATERMARK = 100


class NotSteadyError(ValueError):
    """Too few requests: the queue was empty before the beginning had passed."""


@dataclass(frozen=True, slots=True)
class Steady:
    """Means over a steady stretch; shares of the pool.

    Attributes:
        live: token states. ``later``: reserved and written later (unknown of paged memory).
        never: reserved, or left over in a last block, and never written.
        outside: what nobody can use: rounding of the allocator, holes, free slots.
        running: requests at a time.
    """

    live: float
    later: float
    never: float
    outside: float
    running: float


def config(policy: PolicyName, block_size: int = 16) -> SimConfig:
    """OPT-13B on an A100: every step takes the same time, so that memory alone decides."""
    blocks = BUDGET // (SLOT_BYTES * block_size)
    paged = policy == "paged"
    return SimConfig(
        policy,
        BUDGET,
        SLOT_BYTES,
        MAX_LENGTH,
        block_size=block_size,
        max_num_batched_tokens=_BATCHED_TOKENS,
        watermark_blocks=blocks // _WATERMARK if paged else 0,
    )


def steady(stream: Generated, policy: PolicyName) -> Steady:
    """Serve ``stream`` under ``policy`` and look at the steady stretch.

    Raises:
        NotSteadyError: there is none.
    """
    return steady_of(simulate(stream, config(policy)), _WARM_UP * stream.recipe.output.mean)


def steady_of(result: SimResult, warm_up: float) -> Steady:
    """Means over the stretches of the series with at least one request waiting.

    Args:
        warm_up: steps at the beginning that are left out.

    Raises:
        NotSteadyError: there is none.
    """
    series = result.series
    begins = (0.0, *series.ends_s[:-1])
    waiting = series.levels["waiting"]
    weights = [
        end - begin if begin >= warm_up and waits >= 1 else 0.0
        for begin, end, waits in zip(begins, series.ends_s, waiting, strict=True)
    ]
    total = sum(weights)
    if not total:
        raise NotSteadyError(f"nobody waits after {warm_up:.0f} steps")

    def mean(name: str) -> float:
        return sum(w * v for w, v in zip(weights, series.levels[name], strict=True)) / total

    slots = result.pool_slots
    live, unwritten = mean("live") / slots, mean("unwritten") / slots
    later = mean("written_later") / slots if "written_later" in series.levels else 0.0
    return Steady(live, later, unwritten - later, 1 - live - unwritten, mean("running"))
