"""Thousands of requests at a small pool: bursts, samples, priorities, aborts, refusals.

1,000 at once, then a few with every step ─► engine ─► finished │ aborted │ refused, all told
                                               └─► USS after every hundredth step
"""

from __future__ import annotations

import gc
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import psutil
from tiny_engine import make_engine, solo

from experiment.engine.checks import InvalidRequestError
from experiment.engine.engine import Engine
from experiment.engine.generation import Generation
from experiment.engine.sampling import GREEDY, SamplingParams
from experiment.gpucheck.tiny_models import POSITIONS, VOCABULARY
from kvsim.core.scheduler import Request, RequestRefusedError
from kvsim.core.step import FinishReason, OpKind

FAMILY = "llama"
BLOCKS, BLOCK_SIZE = 40, 4
BURST, EACH_STEP = 1000, 10
_WATCH_EVERY = 25
# A request of 64 slots would take sixteen of forty blocks; the longest prompt here has 24 tokens.
PROMPT, NEW = 24, 14


@dataclass
class Asked:
    """One request as it was sent."""

    id: int
    prompt: list[int]
    new: int
    sampling: SamplingParams
    children: tuple[int, ...]
    priority: int


@dataclass
class Storm:
    """What was sent and what became of it; seconds and bytes of this process."""

    asked: dict[int, Asked] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    finished: dict[int, FinishReason] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    preempted: int = 0
    swapped: int = 0
    forked: int = 0
    steps: int = 0
    most_waiting: int = 0
    seconds: float = 0.0
    uss: list[int] = field(default_factory=list)

    @property
    def sequences(self) -> int:
        """Requests that were accepted, their samples counted."""
        return sum(1 + len(each.children) for each in self.asked.values())

    @property
    def ends(self) -> set[int]:
        """What should have ended: samples of a request that was aborted may not have begun."""
        lost = {c for a in self.asked.values() if a.id in self.aborted for c in a.children}
        return {i for a in self.asked.values() for i in (a.id, *a.children)} - (
            lost - self.finished.keys()
        )

    @property
    def undisturbed(self) -> list[Asked]:
        """Requests of which nothing was aborted."""
        every = self.asked.values()
        return [a for a in every if self.aborted.isdisjoint((a.id, *a.children))]


def drive(requests: int, preemption: str, seed: int = 0) -> tuple[Storm, Engine]:
    """Send ``requests`` and run until nothing is left."""
    choose, storm = random.Random(seed), Storm()
    engine = make_engine(
        FAMILY, BLOCKS, BLOCK_SIZE, policy="priority", preemption=preemption, max_num_seqs=32,
        max_num_batched_tokens=96, host_blocks=24 if preemption == "swap" else 0,
    )  # fmt: skip
    process, begun, sent = psutil.Process(), time.monotonic(), 0
    while sent < requests or engine.scheduler.has_work:
        many = BURST if not sent else choose.randrange(EACH_STEP) if sent < requests else 0
        for _ in range(min(many, requests - sent)):
            _send(engine, storm, sent * 8, choose)
            sent += 1
        _abort(engine, storm, choose)
        _step(engine, storm)
        if storm.steps % _WATCH_EVERY == 0:
            storm.uss.append(process.memory_full_info().uss)
    storm.seconds = time.monotonic() - begun
    return storm, engine


def _send(engine: Engine, storm: Storm, request: int, choose: random.Random) -> None:
    """Four in a hundred cannot be served; they must be refused with a reason, each its own."""
    length, new = choose.randint(1, PROMPT), choose.randint(1, NEW)
    prompt = [choose.randrange(VOCABULARY) for _ in range(length)]
    greedy = choose.random() < 0.7
    sampling = GREEDY if greedy else SamplingParams(0.8, 20, 0.95, seed=request)
    count = choose.choice((0,) * 8 + (1, 3))
    children = tuple(range(request + 1, request + 1 + count))
    wrong = choose.choice(("length", "token", "empty", "seqs") + (None,) * 96)
    if wrong == "length":
        new = POSITIONS + 1
    elif wrong == "token":
        prompt[-1] = VOCABULARY
    elif wrong == "empty":
        prompt = []
    elif wrong == "seqs":
        children = (request,)
    asked = Asked(request, prompt, new, sampling, children, choose.randrange(4))
    try:
        engine.add(request, prompt, new, sampling, children=children, priority=asked.priority)
    except (InvalidRequestError, RequestRefusedError) as error:
        named = str(request) in str(error)
        storm.refused[(wrong if named else None) or "unasked"] += 1
    else:
        assert wrong is None, wrong
        storm.asked[request] = asked


def _abort(engine: Engine, storm: Storm, choose: random.Random) -> None:
    there = (*engine.scheduler.running, *engine.scheduler.waiting)
    storm.most_waiting = max(storm.most_waiting, len(engine.scheduler.waiting))
    if there and choose.random() < 0.3:
        request = choose.choice(there)
        assert engine.abort(request)
        storm.aborted.add(request)


def _step(engine: Engine, storm: Storm) -> None:
    outcome, finished = engine.step()
    storm.steps += 1
    storm.preempted += len(outcome.plan.preempted)
    storm.forked += len(outcome.forked)
    storm.swapped += sum(op.kind is OpKind.SWAP_OUT for op in outcome.plan.ops)
    for each in (*outcome.plan.finished, *finished):
        _end(engine, storm, each.request, each.reason)


def _end(engine: Engine, storm: Storm, request: int, reason: FinishReason) -> None:
    """A parent's samples may go on when it has ended; it is forgotten all the same."""
    if request in storm.finished:
        return
    storm.finished[request] = reason
    storm.tokens[request] = engine.generated(request)
    engine.forget(request)


def left_behind(engine: Engine) -> dict[str, int]:
    """What an engine without requests should have none of."""
    gc.collect()
    there: list[Any] = gc.get_objects()
    host = engine.scheduler.host
    return {
        "blocks": engine.blocks.num_blocks - engine.blocks.num_free,
        "host owners": len(host.owners) if host else 0,
        "generations": sum(type(each) is Generation for each in there),
        "requests": sum(type(each) is Request for each in there),
        "promised": len(engine._reserved_ids),
    }


def alone(asked: Asked) -> dict[int, list[int]]:
    """Tokens of a request and its samples with nobody beside them."""
    if asked.sampling is GREEDY:
        tokens = solo(FAMILY, asked.prompt, asked.new)
        return dict.fromkeys((asked.id, *asked.children), tokens)
    engine = make_engine(FAMILY, 4 * BLOCKS, BLOCK_SIZE)
    engine.add(asked.id, asked.prompt, asked.new, asked.sampling, children=asked.children)
    while engine.scheduler.has_work:
        engine.step()
    return {each: engine.generated(each) for each in (asked.id, *asked.children)}
