"""A run in which much happens: sharing, copies, evictions, preemption, swapping. Without torch.

The paged pool is too small for its requests; slabs of the same bytes stand beside it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import event_makers
from event_makers import SLOT_BYTES, arm_events

from experiment.events import (
    Event,
    Keyframe,
    RunFinished,
    RunStarted,
    WorkloadReady,
    WorkloadRequest,
    encode,
)
from experiment.record.log import EVENTS_FILE, Record, read_record
from kvsim.accounting.ledger import PoolShape
from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import KeyChain
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.core.step import StepPlan

BLOCK = 4
BLOCKS = 40
MAX_LENGTH = 40


def plans(
    blocks: int,
    size: int,
    requests: int,
    seed: int = 0,
    children: int = 2,
    longest: int = MAX_LENGTH,
    **limits: Any,
) -> Iterator[StepPlan]:
    """Plans of requests up to ``longest`` tokens that share a beginning.

    Every third is forked at its first token.
    """
    rng = random.Random(seed)
    scheduler = Scheduler(BlockPool(blocks, size), SchedulerConfig(**limits))
    common = [rng.randrange(50) for _ in range(12)]
    for request in range(requests):
        prompt = [*common[: rng.randrange(len(common))], *(rng.randrange(50) for _ in range(9))]
        tokens = [*prompt, *(rng.randrange(50) for _ in range(longest))]
        chain = KeyChain(size)
        scheduler.add(
            Request(
                request, len(prompt), rng.randrange(4, longest - len(prompt)),
                keys=lambda n, chain=chain, tokens=tokens: chain.keys(tokens, n),
            )
        )  # fmt: skip
    unborn = iter(range(requests, 10**6))
    forked: set[int] = set()
    while scheduler.has_work:
        plan = scheduler.schedule()
        yield plan
        forks = {
            chunk.request: [Request(next(unborn), 1, 12) for _ in range(children)]
            for chunk in plan.chunks
            if chunk.samples and chunk.request % 3 == 0 and chunk.request < requests
            and chunk.request not in forked
        }  # fmt: skip
        forked |= forks.keys()
        scheduler.complete(plan, forks=forks)


def paged_plans(requests: int = 24) -> list[StepPlan]:
    """Sharing, copies, evictions; first with swapping, and recompute when host memory is full."""
    return list(
        plans(BLOCKS, BLOCK, requests, preemption="swap", host_blocks=12, prefix_caching=True,
              max_num_batched_tokens=32)
    )  # fmt: skip


def slab_plans(requests: int = 24) -> list[StepPlan]:
    """The same requests, not forked, in slabs of the same bytes."""
    return list(plans(BLOCKS * BLOCK // MAX_LENGTH, MAX_LENGTH, requests, children=0))


def make_run(
    directory: Path, paged: Sequence[StepPlan], slabs: Sequence[StepPlan],
    blocks: int = BLOCKS, size: int = BLOCK, longest: int = MAX_LENGTH,
) -> Record:  # fmt: skip
    """Write a run of both arms and read it back."""
    rows = PoolShape(blocks * size // longest, longest, SLOT_BYTES)
    events: list[Event] = [
        RunStarted(version="0", wall_ns=1_795_000_000_000_000_000, utc_offset_s=0, lang="en",
                   command=["--yes"], config={}),
        event_makers.head()[1],
        WorkloadReady(
            requests=[WorkloadRequest(id=i, prompt="x", token_ids=[1] * 9, max_new_tokens=9)
                      for i in range(3)],
            max_length=longest, block_size=size, budget_bytes=blocks * size * SLOT_BYTES,
        ),
        *arm_events("slabs", rows, slabs, {0: [1]}),
        *arm_events("paged", PoolShape(blocks, size, SLOT_BYTES), paged, {0: [1]}),
        RunFinished(status="complete"),
    ]  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    # As real logs are: a whole picture every so often.
    kept = [e for e in events if not isinstance(e, Keyframe) or e.step % 50 == 0]
    text = "".join(encode(event) + "\n" for event in kept)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return read_record(directory)
