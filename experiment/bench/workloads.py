"""Workloads A to D, as token ids sampled by seed; ``TINY`` ones for tests.

    A   4 requests, prompts of 2, 12, 140 and 2 tokens, 50 new each
    B   32 requests, prompts of 5, 20, 60 or 200 tokens, 50 new each
    C   64 requests, prompts as in B, 10 to 200 new each, in a budget of four slabs of 1,024
    D   64 requests, prompts of 128 or 512 tokens, 256 new each; on GPUs, or when asked for

In A, B and D all requests fit concurrently in every arm; in C most wait. D decodes 64 concurrent
requests, which should be limited by the memory bandwidth of a GPU.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from experiment.events import ModelPrepared, WorkloadReady, WorkloadRequest

NAMES = ("A", "B", "C")
ON_GPU = ("D",)  # added on a GPU
# Without a watermark, requests admitted too early preempt others. Transformers' continuous batching
# reserves 15 %.
_HELD_BACK = 1 / 8


@dataclass(frozen=True, slots=True)
class Workload:
    """Lengths of the requests, and the budget in slabs.

    Attributes:
        prompts: prompt lengths in tokens, each of equally many requests.
        count: requests; if more than ``prompts``, their order is shuffled by seed.
        new: minimum and maximum new tokens of a request, sampled uniformly.
        slabs: budget; None: one for each request.
        watermark: share of the blocks reserved for running requests. Slabs need none, because they
            hold a whole request.
    """

    name: str
    prompts: tuple[int, ...]
    count: int
    new: tuple[int, int]
    max_length: int
    slabs: int | None = None
    watermark: float = 0.0

    def watermark_blocks(self, block_size: int) -> int:
        """The watermark in whole blocks."""
        return int(self.watermark * (self.slabs or 0) * self.max_length // block_size)

    def lengths(self, draw: random.Random) -> list[tuple[int, int]]:
        """Prompt tokens and new tokens of each request."""
        prompts = [self.prompts[index % len(self.prompts)] for index in range(self.count)]
        if self.count > len(self.prompts):
            draw.shuffle(prompts)
        least, most = self.new
        return [
            (prompt, least if least == most else draw.randint(least, most)) for prompt in prompts
        ]


FULL = (
    Workload("A", (2, 12, 140, 2), 4, (50, 50), 512),
    Workload("B", (5, 20, 60, 200), 32, (50, 50), 512),
    Workload("C", (5, 20, 60, 200), 64, (10, 200), 1024, slabs=4, watermark=_HELD_BACK),
    Workload("D", (128, 512), 64, (256, 256), 1024),
)
TINY = (
    Workload("A", (2, 5, 14, 2), 4, (6, 6), 64),
    Workload("B", (2, 4, 7, 12), 8, (5, 5), 64),
    Workload("C", (2, 4, 7, 12), 10, (2, 20), 128, slabs=2, watermark=_HELD_BACK),
    Workload("D", (4, 9), 6, (6, 6), 64),
)


def requests_of(workload: Workload, model: ModelPrepared, seed: int) -> list[WorkloadRequest]:
    """Requests of a workload, determined by seed and vocabulary."""
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
    """The event with the workload's requests and budget, for all arms."""
    requests = requests_of(workload, model, seed)
    slabs = workload.slabs or len(requests)
    return WorkloadReady(
        requests=requests,
        max_length=workload.max_length,
        block_size=block_size,
        budget_bytes=slabs * workload.max_length * model.slot_bytes,
    )
