"""When an arm is saturated: engines that somebody made up, at rates that they bear or do not.

A step takes ``fixed + each`` times its requests, so an engine that memory does not limit never
generates more than 1 / ``each`` tokens a second.
"""

from __future__ import annotations

import random
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import Figures, cell, findings, sides, why

from experiment.experiments.load import (
    LoadOutcome,
    alone_at,
    kept_up,
    later_tokens,
    rest,
    slowest,
)

FIXED, EACH = 1e-3, 1e-4
# Requests a second that it sustains at the most, of 40 tokens each on average.
MOST = 1 / (EACH * 40)


def served(rate: float, requests: int, slots: int | None = None, seed: int = 0) -> Any:
    """What is measured of the engine: ``slots`` run at a time at the most, None: all that came."""
    drawn = random.Random(seed)
    gaps = [drawn.expovariate(rate) for _ in range(requests - 1)]
    arrivals = list(accumulate(gaps, initial=0.0))
    left = [drawn.randint(10, 70) for _ in range(requests)]
    tokens, ends, now = list(left), [0.0] * requests, 0.0
    while any(left):
        here = [n for n in range(requests) if left[n] and arrivals[n] <= now][:slots]
        if not here:
            now = min(arrivals[n] for n in range(requests) if left[n])
            continue
        now += FIXED + EACH * len(here)
        for n in here:
            left[n] -= 1
            ends[n] = ends[n] if left[n] else now
    each = [
        SimpleNamespace(request=n, latency_s=ends[n] - arrivals[n], tokens=[0] * tokens[n])
        for n in range(requests)
    ]
    came = [SimpleNamespace(id=n, arrival=arrivals[n]) for n in range(requests)]
    return SimpleNamespace(
        requests=each, workload=SimpleNamespace(requests=came),
        config=SimpleNamespace(workload=SimpleNamespace(timed=True)),
    )  # fmt: skip


def outcome(rate: float, requests: int, slots: int | None = None, seed: int = 0) -> LoadOutcome:
    """At a rate, a low one having been run before."""
    low = MOST / 100
    one = served(rate, requests, slots, seed)
    alone = alone_at(rate, [(low, slowest(served(low, requests, slots, seed)) or 0)])
    return LoadOutcome(kept_up(one), later_tokens(one), rest(one), alone)


@pytest.mark.parametrize("times", [4, 10])
@pytest.mark.parametrize("slots", [None, 4])
def test_who_is_overloaded_is_saturated_whether_memory_limits_it_or_not(
    times: float, slots: int | None
) -> None:
    for seed in range(5):
        assert outcome(times * MOST, 64, slots, seed).is_saturated, seed
    if slots is None:  # early ones are as slow as late ones
        assert (outcome(times * MOST, 64).later or 9) < 1.2


@pytest.mark.parametrize("requests", [8, 24, 64, 200])
@pytest.mark.parametrize("times", [0.05, 0.3, 0.6, 0.95])
def test_the_rest_of_what_an_engine_bears_is_never_too_long(times: float, requests: int) -> None:
    """However soon arrivals are over: also before the first answer ends."""
    for seed in range(5):
        one = outcome(times * MOST, requests, seed=seed)
        assert one.rest is not None
        assert one.alone is not None
        assert one.rest <= 1 + one.alone


def test_what_is_seen_without_a_lower_rate_is_not_judged_by_the_rest() -> None:
    assert alone_at(8, []) is None
    assert alone_at(8, [(8, 0.1), (16, 0.2)]) is None
    assert alone_at(8, [(2, 0.1), (4, 0.3)]) == pytest.approx(0.4)
    assert not LoadOutcome(0.0, 1.0, 30.0, None).is_saturated
    assert LoadOutcome(0.0, 1.0, 30.0, 2.0).is_saturated
    assert not LoadOutcome(0.0, 1.0, 3.0, 2.0).is_saturated
    assert not LoadOutcome(1.0, 1.0, 30.0, 2.0).is_saturated


def ran(kept: float, later: float, left: list[float], longest: float) -> Figures:
    return {
        "kept_up": [kept] * 3, "later_tokens": [later] * 3, "rest": left,
        "slowest": [longest] * 3, "latency_s": [1.0, 1.0, 1.0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("left", "key"), [([5.0, 6.0, 7.0], "saturated"), ([2.9, 6.0, 7.0], "queue")]
)
def test_an_arm_that_shares_its_steps_is_saturated_by_its_rest(left: list[float], key: str) -> None:
    """At four times the rate the slowest answer of before takes 4 x 0.5 times all arrivals."""
    low = cell(0, {"rate": 8.0, "clock": "wall"}, paged=ran(1.0, 1.0, [0.1] * 3, 0.5))
    high = cell(1, {"rate": 32.0, "clock": "wall"}, paged=ran(0.0, 1.0, left, 9.0))
    seen = findings("serving", low, high)["limit_paged"]
    assert why(seen) == key
    assert (sides(seen)["rest"], sides(seen)["slowest"]) == (6.0, 2.0)
    alone = findings("serving", high)["limit_paged"]
    assert (why(alone), "slowest" in sides(alone)) == ("queue", False)
