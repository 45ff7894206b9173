"""Random requests for an engine, and runs of them whose books are compared after every step."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from checked_run import CheckedRun

from experiment.engine.engine import Engine
from experiment.gpucheck.tiny_models import VOCABULARY
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.core.step import OpKind, StepPlan


@dataclass(frozen=True)
class Job:
    """A request; ``children`` are further samples of its prompt."""

    prompt: list[int]
    new: int
    arrival: int = 0
    priority: int = 0
    children: tuple[int, ...] = ()


def random_jobs(seed: int, forks: bool = False) -> dict[int, Job]:
    """Requests of which many begin alike; ids of children follow those of all requests."""
    draw = random.Random(seed)
    stem = draw.choices(range(VOCABULARY), k=24)
    jobs: dict[int, Job] = {}
    count = draw.randint(3, 7)
    next_id = count
    for request in range(count):
        shared = stem[: draw.choice((0, 5, 8, 16, 24))]
        tail = draw.choices(range(VOCABULARY), k=draw.randint(1, 9))
        children: tuple[int, ...] = ()
        if forks and draw.random() < 0.6:
            children = tuple(range(next_id, next_id + draw.randint(1, 3)))
            next_id += len(children)
        jobs[request] = Job(
            prompt=shared + tail,
            new=draw.randint(1, 10),
            arrival=draw.choice((0, 0, draw.randint(1, 8))),
            priority=draw.randint(0, 2),
            children=children,
        )
    return jobs


def needs(jobs: dict[int, Job], block_size: int) -> list[int]:
    """Blocks of each request at its end; in a pool of the largest of them every one can run."""
    finals = (final_tokens(len(job.prompt), job.new) for job in jobs.values())
    return [blocks_needed(final, block_size) for final in finals]


def run(engine: Engine, jobs: dict[int, Job]) -> list[StepPlan]:
    """Run to the end; after every step tensors, tables, ledger and recount must agree."""

    def arrive(step: int) -> None:
        for request, job in jobs.items():
            if job.arrival == step:
                kind: dict[str, Any] = {"children": job.children, "priority": job.priority}
                engine.add(request, job.prompt, job.new, **kind)

    return CheckedRun(engine).to_the_end(arrive, 1 + max(job.arrival for job in jobs.values()))


def count_ops(plans: list[StepPlan], kind: OpKind) -> int:
    return sum(len(op.blocks) for plan in plans for op in plan.ops if op.kind is kind)
