"""Drawn traces and edits: means, seeds, limits, shared prefixes; and that every edit is told."""

from __future__ import annotations

import itertools
import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import Listed

from kvsim.traces import (
    PRESETS,
    ArrivalProcess,
    Head,
    LengthDistribution,
    Recipe,
    ScaleRate,
    SyntheticTrace,
    Tile,
    TraceRequest,
    WithArrivals,
    from_preset,
)
from kvsim.traces.types import TraceError

FIVE = LengthDistribution("fixed", 5)


def small(requests: int = 7, **more: Any) -> SyntheticTrace:
    lengths = LengthDistribution("gamma", 20, 9)
    return SyntheticTrace(Recipe(requests, ArrivalProcess(3.0), lengths, lengths, **more))


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    trace = SyntheticTrace(Recipe(40_000, ArrivalProcess(8.0, cv), FIVE, FIVE, seed=1))
    times = [request.arrival_s for request in trace]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert times[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.05, abs=1e-6)


def test_without_a_rate_all_come_at_once() -> None:
    trace = SyntheticTrace(Recipe(9, ArrivalProcess(None), FIVE, FIVE))
    assert {request.arrival_ns for request in trace} == {0}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_means(name: str) -> None:
    trace = SyntheticTrace(from_preset(name, 60_000, ArrivalProcess(2.0), seed=3))
    requests = list(trace)
    preset = PRESETS[name]
    for mean, values in (
        (preset.prompt.mean, [r.prompt_tokens for r in requests]),
        (preset.output.mean, [r.output_tokens for r in requests]),
    ):
        assert statistics.mean(values) == pytest.approx(mean, rel=0.02)
    told = trace.info.parameters["provenance"]
    assert told["prompt.mean"].startswith("published")
    assert not told["output.spread"].startswith("published")


def test_the_seed_decides_and_is_told() -> None:
    one, same, other = small(seed=4), small(seed=4), small(seed=5)
    assert list(one) == list(one) == list(same) != list(other)
    assert one.info == same.info
    assert one.info.sha256 != other.info.sha256
    assert one.info.seed == 4
    json.dumps(one.info.to_json())


def test_a_limit_draws_again_and_counts() -> None:
    trace = SyntheticTrace(
        from_preset("sharegpt-like", 5_000, ArrivalProcess(None), max_length=1024)
    )
    assert max(r.prompt_tokens + r.output_tokens for r in trace) <= 1024
    free = SyntheticTrace(from_preset("sharegpt-like", 5_000, ArrivalProcess(None)))
    assert max(r.prompt_tokens + r.output_tokens for r in free) > 1024
    assert trace.info.parameters["redrawn_for_max_length"] > 0
    assert free.info.parameters["redrawn_for_max_length"] == 0
    with pytest.raises(ValueError, match="hardly ever"):
        SyntheticTrace(from_preset("sharegpt-like", 500, ArrivalProcess(None), max_length=4))


def test_lengths_below_one_token_are_raised_and_counted() -> None:
    trace = SyntheticTrace(
        Recipe(2_000, ArrivalProcess(None), LengthDistribution("gamma", 1, 2), FIVE)
    )
    assert min(r.prompt_tokens for r in trace) == 1
    assert trace.info.parameters["raised_to_one_token"] > 0


def test_edits_take_the_first_requests_and_change_their_rate() -> None:
    source = small()
    head = Head(source, 3)
    assert list(head) == list(source)[:3]
    assert [edit.kind for edit in head.info.edits] == ["head"]
    assert head.info.accepted == 3
    fast = ScaleRate(head, 2.0)
    assert [r.arrival_ns for r in fast] == [round(r.arrival_ns / 2) for r in head]
    assert [(e.kind, dict(e.params)) for e in fast.info.edits] == [
        ("head", {"requests": 3}),
        ("scale_rate", {"factor": 2.0}),
    ]


@given(count=st.integers(1, 40), requests=st.integers(1, 9))
def test_tiles_repeat_the_source_later_and_with_ids_of_their_own(count: int, requests: int) -> None:
    base = [TraceRequest(n, 7 * n, 20 + n, 3, (5, 6 + n % 2), 16) for n in range(requests)]
    tiled = Tile(Listed(base), count)
    out = list(tiled)
    assert [r.id for r in out] == list(range(count))
    assert [r.prompt_tokens for r in out] == [20 + n % requests for n in range(count)]
    assert all(a.arrival_ns <= b.arrival_ns for a, b in itertools.pairwise(out))
    copies = [{each for r in out[i : i + requests] for each in r.hash_ids or ()}
              for i in range(0, count, requests)]  # fmt: skip
    assert all(one.isdisjoint(two) for one, two in itertools.pairwise(copies))
    assert tiled.info.accepted == count
    assert out[-1].arrival_ns == tiled.info.span_ns


def test_tiles_keep_the_rate() -> None:
    tiled = Tile(small(500), 5_000)
    out = list(tiled)
    one = small(500).info.span_ns
    assert one is not None
    assert out[-1].arrival_ns == pytest.approx(10 * one, rel=0.01)


def test_arrivals_are_replaced_by_as_many_in_order() -> None:
    source = small(3)
    moved = WithArrivals(source, [0, 5, 5], rate=2.0)
    assert [r.arrival_ns for r in moved] == [0, 5, 5]
    assert moved.info.edits[-1].params == {"rate": 2.0}
    with pytest.raises(ValueError, match="shorter"):
        list(WithArrivals(source, [0, 1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ArrivalProcess(0),
        lambda: ArrivalProcess(float("nan")),
        lambda: ArrivalProcess(1, -1),
        lambda: LengthDistribution("gamma", 5),
        lambda: LengthDistribution("lognormal", 0.5, 1),
    ],
)
def test_what_cannot_be_drawn_is_refused(make: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        make()


def test_a_rate_that_would_overflow_the_clock_is_refused() -> None:
    with pytest.raises(TraceError) as caught:
        from_preset_trace(ArrivalProcess(1e-9))
    assert caught.value.code == "clock_too_long"
    slow = ScaleRate(from_preset_trace(ArrivalProcess(1.0)), 1e-12)
    with pytest.raises(TraceError) as caught:
        list(slow)
    assert caught.value.code == "clock_too_long"


def from_preset_trace(arrivals: ArrivalProcess) -> SyntheticTrace:
    return SyntheticTrace(from_preset("sharegpt-like", 20, arrivals, max_length=2048))
