"""Random workloads for a scheduler, and what ours does with one, in the form of vLLM's answer.

vllm_scheduler.py has that form. Workloads are plain JSON, because vLLM's interpreter reads them.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.prefix import KeyChain
from kvsim.core.request import Keys, Request
from kvsim.core.scheduler import Scheduler, SchedulerConfig

Workload = dict[str, Any]
# [scheduled, blocks in use, preempted, finished]
Step = list[Any]
_LIMITS = (
    "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens",
    "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive",
    "prefill_schedule_interval", "policy", "prefix_caching", "admission",
)  # fmt: skip
_STOP = 29_999


def random_workload(seed: int, version: str = "vllm-0.33") -> Workload:
    """Requests under limits that are often too small for them."""
    draw = random.Random(seed)
    size = draw.choice([1, 4, 8, 16, 16, 32])
    longest = draw.choice([size * 4, 60, 200, 400])
    requests = _requests(draw, size, longest)
    finals = [len(one["tokens"]) + one["new"] - 1 for one in requests]
    most = max(blocks_needed(final, size) for final in finals)
    blocks = most + draw.randint(0, 2 * most) * draw.choice([0, 0, 1, 1])
    seqs = draw.choice([2, 4, 8, 256])
    tokens = max(seqs if seqs < 256 else 1, draw.choice([8, 32, 64, 256, 2048]))
    workload: Workload = {
        "seed": seed, "scheduler": version, "blocks": blocks, "block_size": size,
        "max_num_seqs": min(seqs, tokens), "max_num_batched_tokens": tokens,
        "prefix_caching": draw.random() < 0.7,
        "watermark": draw.choice([0.0, 0.0, 0.0, 0.05, 0.2]),
        "admission": draw.choice(["full", "full", "full", "first_chunk"]),
        "policy": "priority" if draw.random() < 0.3 else "fcfs",
        "async": False, "requests": requests,
    }  # fmt: skip
    if draw.random() < 0.25:
        workload["long_prefill_token_threshold"] = draw.randint(1, longest)
        workload["long_prefill_token_threshold_adaptive"] = draw.random() < 0.5
    if draw.random() < 0.1:
        workload["max_num_active_seqs"] = draw.randint(1, workload["max_num_seqs"])
    if draw.random() < 0.1:
        workload["max_num_scheduled_tokens"] = draw.randint(1, tokens)
    if draw.random() < 0.15 and version != "vllm-0.32":
        workload["prefill_schedule_interval"] = draw.choice([2, 3, 8])
    aborts = range(len(requests)) if draw.random() < 0.2 else ()
    workload["aborts"] = sorted(
        (draw.randint(0, 60), number) for number in aborts if draw.random() < 0.3
    )
    return workload


def _requests(draw: random.Random, size: int, longest: int) -> list[dict[str, Any]]:
    """Some begin alike, by family; some are whole repetitions."""
    late, alike = draw.random() < 0.5, draw.random() < 0.8
    at, made = 0, []
    for number in range(draw.randint(2, 14)):
        at += draw.choice([0, 0, 1, 5, 20]) if late else 0
        prompt = max(1, draw.choice([draw.randint(1, longest), longest, longest // 2, size * 2]))
        family = draw.randint(1, 3)
        shared = draw.choice([0, prompt // 2, prompt - 1, prompt]) if alike else 0
        tokens = [family * 7_000 + place for place in range(shared)]
        tokens += [(number * 331 + place) % 5_000 for place in range(shared, prompt)]
        new = draw.choice([1, 2, draw.randint(1, longest), draw.randint(1, 40)])
        made.append(
            {
                "arrival": at, "tokens": tokens, "new": new,
                "priority": draw.choice([0, 0, 1, 2]),
                "stop": draw.randint(1, new) if draw.random() < 0.1 else 0,
            }
        )  # fmt: skip
    return made


def scheduling_of(workload: Workload) -> SchedulerConfig:
    """Return the limits of a workload."""
    limits = {name: workload[name] for name in _LIMITS if name in workload}
    # vLLM counts its null block among those that the share is of.
    watermark = int(workload["watermark"] * (workload["blocks"] + 1))
    return SchedulerConfig(watermark_blocks=watermark, scheduler=workload["scheduler"], **limits)


def our_steps(workload: Workload) -> Iterator[Step]:
    """Step our scheduler to the end of a workload, as vllm_scheduler.py steps vLLM's."""
    size, blocks = workload["block_size"], workload["blocks"]
    pool = BlockPool(blocks, size)
    scheduler = Scheduler(pool, scheduling_of(workload))
    coming, tokens, stops = deque(workload["requests"]), {}, {}
    aborts = defaultdict(list)
    for at, number in workload["aborts"]:
        aborts[at].append(number)
    step = number = 0
    while coming or scheduler.waiting or scheduler.running:
        while coming and coming[0]["arrival"] <= step:
            one = coming.popleft()
            tokens[number], stops[number] = list(one["tokens"]), one["stop"]
            request = Request(
                number, len(one["tokens"]), one["new"], keys_of(size, tokens[number]),
                one["priority"],
            )  # fmt: skip
            scheduler.add(request)
            number += 1
        for each in aborts.pop(step, ()):
            scheduler.abort(each)
        plan = scheduler.schedule()
        chunks = [[c.request, c.count, c.start, len(pool.table(c.request))] for c in plan.chunks]
        used, stopped = pool.num_owned, []
        for chunk in plan.chunks:
            if chunk.samples:
                prompt = len(workload["requests"][chunk.request]["tokens"])
                place = len(tokens[chunk.request]) - prompt + 1
                stops_here = place == stops[chunk.request]
                tokens[chunk.request].append(_STOP if stops_here else 30_000 + prompt + place)
                stopped += [chunk.request] * stops_here
        finished = [end.request for end in scheduler.complete(plan, stopped)]
        yield [chunks, used, list(plan.preempted), finished]
        step += 1
    pool.check_integrity()


def keys_of(size: int, tokens: Sequence[int]) -> Keys:
    """Return the keys of a text that may grow."""
    chain = KeyChain(size)
    return lambda count: chain.keys(tokens, count)
