"""Steady state of a saturated pool: means over the interval with waiting requests.

waiting  ▇▇▇▇▇▇▇▇▅▅▃▃▁ . . .          all requests arrive at once
         | |          |  draining: not counted
         | starts here: the first requests, which all began together, have ended
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.paper.workloads import BUDGET, MAX_LENGTH, SLOT_BYTES
from kvsim.sim.config import PolicyName, SimConfig
from kvsim.sim.simulator import simulate
from kvsim.traces.generate import SyntheticTrace

# Warm-up in mean output lengths; each step generates one token per request.
_WARM_UP = 3
# Defaults of vLLM's first versions: 2,560 tokens per step, a watermark of 1 % of the blocks.
_BATCHED_TOKENS = 2560
_WATERMARK = 100


class NotSteadyError(ValueError):
    """Too few requests: the queue was empty before the warm-up had ended."""


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Steady-state means, as shares of the pool.

    Attributes:
        live: slots with tokens. ``later``: reserved and written later (0 for paged).
        never: reserved, or left over in a last block, and never written.
        outside: rounding of the allocator, holes and free slots.
        running: concurrent requests.
    """

    live: float
    later: float
    never: float
    outside: float
    running: float


def config(policy: PolicyName, block_size: int = 16) -> SimConfig:
    """Configure OPT-13B on an A100 with a constant step time, so that only memory matters."""
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


def steady_state(stream: SyntheticTrace, policy: PolicyName) -> SteadyState:
    """Simulate ``stream``; return the means while a request waits and after the warm-up.

    Raises:
        NotSteadyError: there is no such time.
    """
    result, warm_up = simulate(stream, config(policy)), _WARM_UP * stream.recipe.output.mean
    series = result.series
    begins = (0.0, *series.ends_s[:-1])
    waiting = series.levels["waiting"]
    weights = [
        end - begin if begin >= warm_up and waits >= 1 else 0.0
        for begin, end, waits in zip(begins, series.ends_s, waiting, strict=True)
    ]
    total = sum(weights)
    if not total:
        raise NotSteadyError(f"no request waits after {warm_up:.0f} steps")

    def mean(name: str) -> float:
        return sum(w * v for w, v in zip(weights, series.levels[name], strict=True)) / total

    slots = result.pool_slots
    live, unwritten = mean("live") / slots, mean("unwritten") / slots
    later = mean("written_later") / slots if "written_later" in series.levels else 0.0
    return SteadyState(live, later, unwritten - later, 1 - live - unwritten, mean("running"))
