"""What is generated: A to D, as token ids drawn by seed; ``tiny`` ones for tests.

    A   4 requests, prompts of 2, 12, 140 and 2 tokens, 50 new each
    B   32 requests, prompts of 5, 20, 60 or 200 tokens, 50 new each
    C   64 requests, prompts as in B, 10 to 200 new each, in a budget of four slabs of 1,024
    D   64 requests, prompts of 128 or 512 tokens, 256 new each; on GPUs, or when asked for

In A, B and D everybody has room at once in every arm; in C most wait. D decodes for 64 requests at
a time, which is where a GPU should be busy reading.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from experiment.events import ModelPrepared, WorkloadReady, WorkloadRequest

NAMES = ("A", "B", "C")
ON_GPU = ("D",)  # beside them where there is one
# Without any, each request that is admitted too early sends another one back, to be computed again.
# Transformers' continuous batching holds back 15 % by itself.
_HELD_BACK = 1 / 8
Lengths = list[tuple[int, int]]  # prompt tokens and new tokens of each request


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of the requests by a source of random numbers, and the budget in slabs.

    ``slabs`` None is one for each request. ``watermark`` is the share of the blocks that those who
    wait may not take, so that those who run can grow; of slabs, which hold a request however long,
    there is none.
    """

    name: str
    lengths: Callable[[random.Random], Lengths]
    max_length: int
    slabs: int | None = None
    watermark: float = 0.0

    def watermark_blocks(self, block_size: int) -> int:
        """That share of the budget, in whole blocks."""
        return int(self.watermark * (self.slabs or 0) * self.max_length // block_size)


def _evenly(prompts: tuple[int, ...], count: int, draw: random.Random) -> list[int]:
    """As many of each length, in an order drawn by the seed."""
    chosen = [prompts[index % len(prompts)] for index in range(count)]
    draw.shuffle(chosen)
    return chosen


def _a(_: random.Random) -> Lengths:
    return [(prompt, 50) for prompt in (2, 12, 140, 2)]


def _b(draw: random.Random) -> Lengths:
    return [(prompt, 50) for prompt in _evenly((5, 20, 60, 200), 32, draw)]


def _c(draw: random.Random) -> Lengths:
    prompts = _evenly((5, 20, 60, 200), 64, draw)
    return [(prompt, draw.randint(10, 200)) for prompt in prompts]


def _d(draw: random.Random) -> Lengths:
    return [(prompt, 256) for prompt in _evenly((128, 512), 64, draw)]


def _tiny_a(_: random.Random) -> Lengths:
    return [(prompt, 6) for prompt in (2, 5, 14, 2)]


def _tiny_b(draw: random.Random) -> Lengths:
    return [(prompt, 5) for prompt in _evenly((2, 4, 7, 12), 8, draw)]


def _tiny_c(draw: random.Random) -> Lengths:
    prompts = _evenly((2, 4, 7, 12), 10, draw)
    return [(prompt, draw.randint(2, 20)) for prompt in prompts]


def _tiny_d(draw: random.Random) -> Lengths:
    return [(prompt, 6) for prompt in _evenly((4, 9), 6, draw)]


FULL = (
    Workload("A", _a, 512),
    Workload("B", _b, 512),
    Workload("C", _c, 1024, slabs=4, watermark=_HELD_BACK),
    Workload("D", _d, 1024),
)
TINY = (
    Workload("A", _tiny_a, 64),
    Workload("B", _tiny_b, 64),
    Workload("C", _tiny_c, 128, slabs=2, watermark=_HELD_BACK),
    Workload("D", _tiny_d, 64),
)


def requests_of(workload: Workload, model: ModelPrepared, seed: int) -> list[WorkloadRequest]:
    """The requests; the same for the same seed and vocabulary, whatever else is run."""
    draw = random.Random(f"{workload.name}{seed}")  # noqa: S311 - no secret, a workload
    return [
        WorkloadRequest(
            id=index,
            prompt=f"{workload.name}{index}",
            token_ids=[draw.randrange(model.vocab_size) for _ in range(prompt)],
            max_new_tokens=new,
        )
        for index, (prompt, new) in enumerate(workload.lengths(draw))
    ]


def ready(workload: Workload, model: ModelPrepared, block_size: int, seed: int) -> WorkloadReady:
    """The workload as every arm is given it."""
    requests = requests_of(workload, model, seed)
    slabs = workload.slabs or len(requests)
    return WorkloadReady(
        requests=requests,
        max_length=workload.max_length,
        block_size=block_size,
        budget_bytes=slabs * workload.max_length * model.slot_bytes,
    )
