"""Latency in a closed loop: from when a user asks, who does when the last answer is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import tiny_config
from made_up import Figures, beside, cell, findings, sides

from experiment.events import RequestFinished
from experiment.experiments.closed_loop import (
    at_a_time,
    loop_latencies,
    loop_latency,
    most_at_a_time,
)
from experiment.experiments.measured import Measured


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


def ran(rates: Sequence[float], **latencies: Sequence[float]) -> Figures:
    return {"tokens_per_s": rates, "running_mean": 3.2, "running_peak": 4, **latencies}


def test_latencies_are_compared_among_as_many_users() -> None:
    """One after another stands beside a batch of the most users with as many, not with its one."""
    rates = [10.0, 10.0, 10.0]
    first = cell(
        0, {"concurrency": 1},
        contiguous__sequential=ran(
            rates, loop_latency_s=[1.0] * 3, loop_latency_most_s=[40.0, 41.0, 42.0]
        ),
    )  # fmt: skip
    batch = ran(rates, loop_latency_s=[20.0, 20.5, 21.0])
    seen = findings("concurrency", first, cell(1, {"concurrency": 32}, contiguous__batch=batch))
    told = beside(seen["batching"])["loop_latency_s"]
    assert told.estimate == 0.5
    assert sides(told) == {"contiguous_batch": 20.5, "contiguous_sequential": 41.0}
    # Where the cell with the most did not run, no other has as many users.
    seen = findings("concurrency", first, cell(1, {"concurrency": 16}, contiguous__batch=batch))
    assert "loop_latency_s" not in beside(seen["batching"])
