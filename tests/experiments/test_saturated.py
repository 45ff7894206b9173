"""When an arm is saturated: engines that somebody made up, at rates that they bear or do not.

A step takes ``fixed + each`` times its requests, so an engine that memory does not limit never
generates more than 1 / ``each`` tokens a second.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import tiny_config
from made_up import Figures, begun_busy, beside, cell, findings, notes, sides, why

from experiment.analysis.experiment_results import CellResult
from experiment.events import RequestFinished
from experiment.experiments.closed_loop import (
    at_a_time,
    loop_latencies,
    loop_latency,
    most_at_a_time,
)
from experiment.experiments.load import (
    LoadOutcome,
    alone_at,
    kept_up,
    later_tokens,
    rest,
    slowest,
)
from experiment.experiments.measured import Measured

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
    assert (sides(seen)["rest"], sides(seen)["alone"]) == (6.0, 2.0)
    alone = findings("serving", high)["limit_paged"]
    assert (why(alone), "alone" in sides(alone)) == ("queue", False)


def measured(ends: Mapping[int, float] | Sequence[float], **config: Any) -> Measured:
    """A repeat whose requests ended at these seconds, by their ids."""
    named = ends if isinstance(ends, Mapping) else dict(enumerate(ends))
    requests = [
        RequestFinished(
            t_ns=0, arm="paged", request=n, reason="length", prompt_tokens=1, tokens=[1], text="",
            wait_s=0.0, first_token_s=end, latency_s=end,
        )
        for n, end in named.items()
    ]  # fmt: skip
    made: Any = SimpleNamespace(requests=requests, config=tiny_config("concurrency", **config))
    return made  # type: ignore[no-any-return]


def test_a_request_is_submitted_when_a_user_has_an_answer() -> None:
    """Request 1 ends first and has user 1 ask for request 2, which waits for request 0's memory."""
    ended = measured({1: 1.0, 0: 3.0, 2: 5.0, 3: 4.0})
    assert loop_latencies(ended, 2) == [3.0, 1.0, 4.0, 1.0]
    # With as many users as requests, or more, all ask at the beginning.
    assert loop_latencies(ended, 4) == loop_latencies(ended, 9) == [3.0, 1.0, 5.0, 4.0]
    assert loop_latencies(ended, 10**30) == loop_latencies(ended, 9)  # no list of so many is made
    # One alone asks when the one before has ended.
    assert loop_latencies(measured([1.0, 3.0, 6.0]), 1) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("users", [1, 4, 16])
def test_users_are_throughput_times_latency(users: int) -> None:
    """Little's law: of an arm that ends one each half second, whatever it holds at a time."""
    ended = measured([0.5 * (n + 1) for n in range(64)], engine__max_num_seqs=users)
    steady = loop_latencies(ended, users)[users:]
    assert 2.0 * fmean(steady) == pytest.approx(users)
    mean = loop_latency(at_a_time)(ended)
    assert mean == fmean(loop_latencies(ended, users))


def test_an_arm_that_runs_once_has_it_for_the_most_users_of_any_cell() -> None:
    ended = measured([1.0, 2.0, 3.0], experiment__values=[1, 2], engine__max_num_seqs=1)
    assert (at_a_time(ended), most_at_a_time(ended)) == (1, 2)
    assert loop_latency(most_at_a_time)(ended) == (1.0 + 2.0 + 2.0) / 3


def test_requests_that_come_by_a_clock_are_no_closed_loop() -> None:
    ended = measured([1.0, 2.0], workload__arrivals=[0, 1], workload__clock="wall")
    assert loop_latency(at_a_time)(ended) is None
    assert loop_latency(at_a_time)(measured([])) is None


def figures_at(rates: Sequence[float], **latencies: Sequence[float]) -> Figures:
    return {"tokens_per_s": rates, "running_mean": 3.2, "running_peak": 4, **latencies}


def test_latencies_are_compared_among_as_many_users() -> None:
    """One after another stands beside a batch of the most users with as many, not with its one."""
    rates = [10.0, 10.0, 10.0]
    first = cell(
        0, {"concurrency": 1},
        contiguous__sequential=figures_at(
            rates, loop_latency_s=[1.0] * 3, loop_latency_most_s=[40.0, 41.0, 42.0]
        ),
    )  # fmt: skip
    batch = figures_at(rates, loop_latency_s=[20.0, 20.5, 21.0])
    seen = findings("concurrency", first, cell(1, {"concurrency": 32}, contiguous__batch=batch))
    told = beside(seen["batching"])["loop_latency_s"]
    assert told.estimate == 0.5
    assert sides(told) == {"contiguous_batch": 20.5, "contiguous_sequential": 41.0}
    # Where the cell with the most did not run, no other has as many users.
    seen = findings("concurrency", first, cell(1, {"concurrency": 16}, contiguous__batch=batch))
    assert "loop_latency_s" not in beside(seen["batching"])


# As a real run had them: latency does not tell the two apart, the first token does.
FIRST = {"slabs": ([5.5e-3, 5.7e-3, 6.1e-3], [22.8e-3, 25.7e-3, 28.7e-3]),
         "paged": ([2.8e-3, 2.9e-3, 3.0e-3], [3.6e-3, 4.0e-3, 4.5e-3])}  # fmt: skip


def with_first_tokens(*names: str, repeats: int = 3) -> CellResult:
    arms = {
        arm: {"latency_s": [1.0, 1.1, 1.2][:repeats]}
        | {name: seen[:repeats] for name, seen in zip(names, of_arm, strict=False)}
        for arm, of_arm in FIRST.items()
    }
    return cell(0, {"rate": 40.0, "clock": "wall"}, **arms)  # type: ignore[arg-type]


def test_the_first_token_heeds_what_latency_heeds() -> None:
    """Of too few requests there is no 95th percentile, and nothing is said of it."""
    both = ("first_token_s", "first_token_p95_s")
    few = findings("serving", with_first_tokens(both[0]))
    assert few["first_token"].verdict == "shown"
    assert "first_token_p95" not in few
    twice = findings("serving", with_first_tokens(*both, repeats=2))
    busy = findings("serving", begun_busy(with_first_tokens(*both), "paged"))
    for seen, key in ((twice, "few"), (busy, "busy")):
        told = [seen[name.removesuffix("_s")] for name in both]
        assert [(each.verdict, why(each)) for each in told] == [("untested", key)] * 2
    assert findings("serving", with_first_tokens())["first_token"].verdict == "untested"


def bearing(index: int, rate: float, slabs: list[float], paged: list[float] | None) -> CellResult:
    """A rate at which so many ended as came, of either arm, and late ones waited longer."""
    queues: Figures = {"latency_s": [2.0, 2.1, 2.2], "later_tokens": [2.0, 2.1, 2.2]}
    fast: Figures = {"latency_s": [1.0, 1.1, 1.2], "later_tokens": [2.0, 2.1, 2.2]}
    kept: Figures = {} if paged is None else {"kept_up": paged}
    values: dict[str, int | float | str] = {"rate": rate, "clock": "wall"}
    return cell(index, values, slabs={**queues, "kept_up": slabs}, paged={**fast, **kept})


GAVE, OPEN, BORE = [0.5, 0.6, 0.7], [0.5, 0.6, 1.0], [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("slabs", "paged", "told"),
    [(GAVE, BORE, True), (GAVE, None, True), (OPEN, BORE, False), (BORE, BORE, False)],
)
def test_the_factor_of_a_queue_is_one_of_so_many_requests(
    slabs: list[float], paged: list[float] | None, told: bool
) -> None:
    seen = notes(findings("serving", bearing(0, 40.0, slabs, paged))["paging"])
    assert ("queue" in seen) is told


def test_who_was_saturated_at_a_lower_rate_bears_no_higher_one() -> None:
    low, high = bearing(0, 20.0, GAVE, BORE), bearing(1, 40.0, BORE, BORE)
    assert "queue" in notes(findings("serving", low, high)["paging"])


def test_a_higher_rate_that_saturates_tells_nothing_of_a_lower_one() -> None:
    """Blocks did not run there, so it is no rate that the two are compared at."""
    high = bearing(1, 80.0, GAVE, None)
    alone = high.model_copy(update={"arms": [arm for arm in high.arms if arm.arm == "slabs"]})
    seen = findings("serving", bearing(0, 40.0, BORE, BORE), alone)["paging"]
    assert not notes(seen)
