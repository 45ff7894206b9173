"""The whole gain of concurrency and of the throughput claim: over which arm, and its factors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Figures, begun_busy, cell, codes, findings, found_of, notes

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.analysis.finding_text import answer
from experiment.experiments.claims import Judged, judge

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


def steps(whole: Finding) -> list[object]:
    return [row.estimate for row in whole.beside]


def plain(whole: Finding) -> list[str]:
    return [code for code in codes(notes(whole)["plain"]["row"]) if code.startswith("contiguous")]


def test_the_whole_gain_is_the_product_of_its_steps() -> None:
    whole = findings("concurrency", *cells())["whole"]
    assert (whole.verdict, whole.estimate, steps(whole)) == (None, 9, [2, 3, 1.5])
    assert findings("concurrency", *cells(repeats=2))["whole"].verdict == "untested"
    assert notes(whole)["whole_judged"]["product"] == pytest.approx(9)
    # It says which cache of Transformers it is held against, and that the other one did not run.
    assert plain(whole) == ["contiguous_sequential", "contiguous_growing"]


def test_plain_is_the_faster_of_two_caches_and_both_are_told() -> None:
    """With a growing cache that generates 15 the gain is 6, of which the cache is no gain."""
    whole = findings("concurrency", *cells(growing=15))["whole"]
    assert (whole.estimate, steps(whole)) == (6, [10 / 15, 2, 3, 1.5])
    assert plain(whole) == ["contiguous_growing", "contiguous_sequential"]
    slower = findings("concurrency", *cells(growing=8))["whole"]
    assert (slower.estimate, steps(slower)) == (9, [2, 3, 1.5])
    assert plain(slower) == ["contiguous_sequential", "contiguous_growing"]


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
    assert claim.reason.key == "experiments.concurrency.plain"


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
    assert "few" in codes(claim.reason)


@pytest.mark.parametrize("gone", [("slabs",), ("contiguous.batch",), ("contiguous.batch", "slabs")])
def test_without_each_of_its_factors_there_is_no_gain_to_tell(gone: tuple[str, ...]) -> None:
    """Nobody could say which part of it is paging's, however large it is."""
    first, most = cells(paged=[900, 900, 900])
    assert throughput([first, most]).verdict == "shown"
    left = [arm for arm in most.arms if arm.arm not in gone]
    made = [first, most.model_copy(update={"arms": left})]
    claim = throughput(made)
    assert (claim.seen, claim.verdict) == (None, "untested")
    assert claim.reason == answer(findings("concurrency", *made)["whole"])
