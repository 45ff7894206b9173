"""The whole gain of concurrency and of the throughput claim: over which arm, and its factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from made_up import Figures, begun_busy, below, cell, findings, found_of

from experiment.analysis.experiment_results import CellResult
from experiment.experiments.claims import Judged, judge
from experiment.text.messages import arm_message

STATIC, GROWING = "contiguous.sequential", "contiguous.growing"


def ran(rate: float, repeats: int = 3) -> Figures:
    return {"tokens_per_s": [rate] * repeats, "running_mean": 3.2, "running_peak": 4}


def cells(
    repeats: int = 3, growing: float | None = None, paged: Sequence[float] | None = None
) -> list[CellResult]:
    """10 tokens a second one after another, then 20, 60 and 90."""
    first = {"contiguous__sequential": ran(10, repeats)}
    if growing is not None:
        first["contiguous__growing"] = ran(growing, repeats)
    blocks = ran(90, repeats) if paged is None else {"tokens_per_s": paged}
    most = {"contiguous__batch": ran(20, repeats), "slabs": ran(60, repeats), "paged": blocks}
    return [cell(0, {"concurrency": 1}, **first), cell(1, {"concurrency": 32}, **most)]


def throughput(made: list[CellResult]) -> Judged:
    judged = judge({"concurrency": found_of("concurrency", *made)})
    return next(one for one in judged if one.claim.name == "throughput")


def plain(told: dict[str, Any]) -> tuple[object, ...]:
    return tuple(told.get(name) for name in ("plain", "rate", "other", "other_rate"))


def test_the_whole_gain_is_the_product_of_its_steps() -> None:
    # The headline names the part that is paging's.
    whole = findings("concurrency", *cells())["whole"]
    told = {"factor": 9, "batching": 2, "engine": 3, "paging": 1.5}
    assert told.items() <= whole.text.params.items()
    assert whole.verdict is None
    assert findings("concurrency", *cells(repeats=2))["whole"].verdict == "untested"
    # It says which cache of Transformers it is held against, and that the other one did not run.
    said = below(whole)
    assert set(said) == {"concurrency.whole_judged", "concurrency.plain_alone"}
    assert said["concurrency.whole_judged"]["product"] == pytest.approx(9)
    one, other = (arm_message(arm).model_dump() for arm in (STATIC, GROWING))
    assert plain(said["concurrency.plain_alone"]) == (one, 10, other, None)


def test_plain_is_the_faster_of_two_caches_and_both_are_told() -> None:
    """With a growing cache that generates 15 the gain is 6, of which the cache is no gain."""
    one, other = (arm_message(arm).model_dump() for arm in (STATIC, GROWING))
    whole = findings("concurrency", *cells(growing=15))["whole"]
    assert whole.text.key == "experiments.concurrency.whole_seen_cache"
    told = {"factor": 6, "cache": 10 / 15, "batching": 2, "engine": 3, "paging": 1.5}
    assert told.items() <= whole.text.params.items()
    assert plain(below(whole)["concurrency.plain"]) == (other, 15, one, 10)
    slower = findings("concurrency", *cells(growing=8))["whole"]
    assert slower.text.key == "experiments.concurrency.whole_seen"
    assert slower.text.params["factor"] == 9
    assert plain(below(slower)["concurrency.plain"]) == (one, 10, other, 8)


@pytest.mark.parametrize(
    ("growing", "value", "factors"),
    [
        (None, 9, {"batching": 2, "engine": 3, "paging": 1.5}),
        (8, 9, {"batching": 2, "engine": 3, "paging": 1.5}),
        (15, 6, {"cache": 10 / 15, "batching": 2, "engine": 3, "paging": 1.5}),
    ],
)
def test_the_throughput_claim_is_over_the_faster_and_says_which_part_is_paging(
    growing: float | None, value: float, factors: dict[str, float]
) -> None:
    claim = throughput(cells(growing=growing, paged=[90, 90, 99]))
    assert claim.seen is not None
    assert (claim.seen.value, claim.seen.low) == (value, value)
    assert claim.seen.high == pytest.approx(value * 1.1)
    assert {part.name: part.value for part in claim.seen.parts} == factors
    assert claim.verdict == "not_shown"
    assert claim.reason is not None
    name = "plain_alone" if growing is None else "plain"
    assert claim.reason.key == f"experiments.concurrency.{name}"


def test_which_is_faster_is_open_where_others_were_busy() -> None:
    """A growing cache that other programs slowed may have been the faster one."""
    first, most = cells(growing=8)
    claim = throughput([begun_busy(first, GROWING), most])
    assert (claim.seen, claim.verdict) == (None, "untested")
    assert throughput([first, most]).seen is not None


def test_a_throughput_that_was_not_repeated_is_not_judged() -> None:
    claim = throughput(cells(repeats=2))
    assert (claim.seen, claim.verdict) == (None, "untested")
    assert claim.reason is not None
    assert claim.reason.key == "experiments.repeats_few"


@pytest.mark.parametrize("gone", [("slabs",), ("contiguous.batch",), ("contiguous.batch", "slabs")])
def test_without_each_of_its_factors_there_is_no_gain_to_tell(gone: tuple[str, ...]) -> None:
    """Nobody could say which part of it is paging's, however large it is."""
    first, most = cells(paged=[900, 900, 900])
    assert throughput([first, most]).verdict == "shown"
    left = [arm for arm in most.arms if arm.arm not in gone]
    made = [first, most.model_copy(update={"arms": left})]
    claim = throughput(made)
    assert (claim.seen, claim.verdict) == (None, "untested")
    assert claim.reason == findings("concurrency", *made)["whole"].text
