"""How fast requests are served, by a latency model of a step.

    requests at once ─► steps that only decode, steps that also prefill
                     ─► time per output token, time to the first token, requests a second

Every step decodes for all running requests, and some steps also prefill. The two kinds are averaged
separately: memory-bound and compute-bound steps alternate, and one mean step would be faster than
either. Requests a second follow from Little's law.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from kvsim.latency.roofline import Latency, StepWork
from kvsim.planning.saturation import mean_over_steps, paged_demand
from kvsim.sizing.layout import LayerCache, token_bytes
from kvsim.sizing.request_memory import live_bytes


@dataclass(frozen=True, slots=True)
class Traffic:
    """What serving the mean request takes.

    Attributes:
        prompt, output: tokens that are computed.
        read: tokens that attention reads in a step that decodes, on average.
        pairs: query-key pairs of the prompt.
    """

    prompt: float
    output: float
    read: float
    pairs: float

    @classmethod
    def of(
        cls,
        lengths: Sequence[tuple[int, int]],
        caches: Sequence[LayerCache] = (),
        shared_prefix: int = 0,
    ) -> Traffic:
        """Means over (prompt, new) tokens of requests.

        Args:
            caches: of the layers: what windows, chunks and states keep is read as if it were as
                many bytes of tokens that every layer keeps.
            shared_prefix: tokens that a prefix cache holds; of layers that keep every token alone.
        """
        prompts, outputs = np.array(lengths, np.float64).T
        prompt, output = float(prompts.mean()), float(outputs.mean())
        whole = token_bytes(caches)
        if not whole or not any(cache.kind == "state" or cache.span for cache in caches):
            cached = np.minimum(shared_prefix, prompts - 1)
            pairs = float((prompts * (prompts + 1) - cached * (cached + 1)).mean() / 2)
            computed = prompt - float(cached.mean())
            return cls(computed, output, paged_demand(lengths, 1).live, pairs)
        at = live_bytes(caches, np.arange(max(map(sum, lengths)) + 1))
        pairs = sum(cache.token_bytes * _pairs(prompts, cache) for cache in caches) / whole
        return cls(prompt, output, mean_over_steps(lengths, at) / whole, pairs)


def _pairs(prompts: NDArray[np.float64], cache: LayerCache) -> float:
    """Query-key pairs of a prompt in one layer, on average; none of a state."""
    if cache.kind == "state":
        return 0.0
    span = np.minimum(cache.span or np.inf, prompts)
    return float((span * (span + 1) / 2 + (prompts - span) * span).mean())


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast requests are served.

    Attributes:
        running: requests at once.
        tpot_s: mean time per output token; ``ttft_s``: to the first one, for a request that need
            not wait for others to end.
        rate: requests a second; ``tokens_per_s``: output tokens.
    """

    running: float
    tpot_s: float
    ttft_s: float
    rate: float
    tokens_per_s: float


def speed(
    latency: Latency,
    traffic: Traffic,
    running: float,
    max_num_batched_tokens: int = 2048,
    stages: int = 1,
    engines: float = 1.0,
) -> Speed | None:
    """Return the speed with ``running`` requests at once; None with less than one.

    Args:
        stages: pipeline stages, each of which has a share of the requests in hand at a time;
            ``latency`` is of all stages one after another.
        engines: with requests, in data parallel, which take their steps together; ``latency`` is of
            all of them.
    """
    if running < 1:
        return None
    batch = max(1.0, running / stages)
    chunks = ceil(traffic.prompt / max_num_batched_tokens)
    # Each request needs `output` steps, so batch / output requests arrive per step.
    arrivals = batch / traffic.output
    with_prompts = min(1.0, arrivals * chunks / engines)

    def step(prompts: float, decoding: float) -> float:
        read = decoding * traffic.read
        pairs = read + prompts * traffic.pairs
        tokens = (round(prompts * traffic.prompt), round(decoding))
        return latency.seconds(StepWork(*tokens, round(read), round(pairs)))

    mean = step(0, batch)
    if with_prompts:
        mixed = step(arrivals / with_prompts, batch)
        mean = with_prompts * mixed + (1 - with_prompts) * mean
    others = batch - 1
    # The first chunk waits for the step in hand, half of it on average. Other engines prefill, too.
    first = chunks * step(engines / chunks, others) + (mean / 2 if others else 0.0)
    per_second = running / mean if mean else inf
    return Speed(running, mean, first, per_second / traffic.output, per_second)


def running_at(at: Callable[[float], Speed | None], rate: float, most: float) -> float:
    """Return how many requests a rate a second keeps running: at least 1, at most ``most``."""

    def is_enough(running: float) -> bool:
        found = at(running)
        return found is None or found.rate >= rate

    low, high = 1.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def most_within(
    at: Callable[[float], Speed | None], most: int, ttft_s: float = inf, tpot_s: float = inf
) -> int:
    """Return the most requests at once, up to ``most``, with which both times are met; 0: none."""

    def is_late(running: int) -> bool:
        found = at(running)
        return found is None or found.ttft_s > ttft_s or found.tpot_s > tpot_s

    return bisect_left(range(1, most + 1), True, key=is_late)
