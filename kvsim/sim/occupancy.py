"""Blocks in use over time: an engine's record compared with a simulation of its requests.

    step        0   1   2   3   4   5
    recorded    4   7   9   9   5   .       blocks owned by requests, of 10 usable ones
    simulated   4   7   8   9   5   5
    points      0   0  10   0   0  50       |difference| / usable x 100, step by step

Unlike :mod:`kvsim.sim.replay`, the simulation receives the requests only and none of the recorded
decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from kvsim.accounting.slots import PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.sim.replay import RecordedRequest


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks owned by requests during each step, recorded and simulated.

    Attributes:
        usable: blocks that can be allocated to requests.
        preempted: number of preemptions, recorded and simulated.
    """

    usable: int
    recorded: tuple[int, ...]
    simulated: tuple[int, ...]
    preempted: tuple[int, int]

    @property
    def points(self) -> tuple[float, ...]:
        """Simulated - recorded at each step, in percentage points of usable blocks.

        The shorter of the two is continued with 0.
        """
        pairs = zip_longest(self.simulated, self.recorded, fillvalue=0)
        return tuple(100 * (ours - theirs) / self.usable for ours, theirs in pairs)

    @property
    def mean_points(self) -> float:
        """Mean absolute difference over all steps; 0 without steps."""
        return fmean(abs(each) for each in self.points) if self.points else 0.0

    @property
    def worst_step(self) -> int | None:
        """The first step with the largest difference; None without steps."""
        sizes = [abs(each) for each in self.points]
        return sizes.index(max(sizes)) if sizes else None


def occupancy(
    recorded: Sequence[int],
    preempted: int,
    requests: Iterable[RecordedRequest],
    shape: PoolShape,
    engine_blocks: int,
    config: SchedulerConfig,
) -> Occupancy:
    """Simulate the requests of a recorded run and compare owned blocks.

    Args:
        recorded: blocks owned by requests during each step.
        preempted: number of recorded preemptions.
        requests: with their recorded number of new tokens as ``max_new_tokens``.
        shape: of the engine's pool; ``engine_blocks`` of it are never allocated to requests.

    Raises:
        ValueError: no block is left for requests.
    """
    usable = shape.blocks - engine_blocks
    if usable < 1:
        raise ValueError(f"{engine_blocks} of {shape.blocks} blocks are the engine's")
    held, simulated = schedule_all(BlockPool(usable, shape.block_size), requests, config)
    return Occupancy(usable, tuple(recorded), tuple(held), (preempted, simulated))


def schedule_all(
    pool: BlockPool, requests: Iterable[RecordedRequest], config: SchedulerConfig
) -> tuple[list[int], int]:
    """Schedule requests to their ends; return blocks owned in each step, and preemptions.

    Raises:
        RequestRefusedError: a request can never run.
    """
    scheduler = Scheduler(pool, config)
    pending = sorted(requests, key=lambda each: each.arrival_step)[::-1]
    held: list[int] = []
    preempted = 0
    while pending or scheduler.has_work:
        while pending and pending[-1].arrival_step <= len(held):
            request = pending.pop()
            scheduler.add(
                Request(
                    request.id, request.prompt_tokens, request.max_new_tokens, request.keys,
                    request.priority,
                )
            )  # fmt: skip
        plan = scheduler.schedule()
        held.append(pool.num_owned)
        preempted += len(plan.preempted)
        scheduler.complete(plan)
    return held, preempted
