"""The claims and what concurrency says: by which cell, over whom, and what a draw leaves open."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import (
    SLABS,
    Figures,
    begun_busy,
    budget,
    cell,
    claimed,
    codes,
    findings,
    found_of,
    notes,
    sides,
    told,
    why,
)

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.analysis.finding_text import answer
from experiment.config.reading import load_config
from experiment.experiments import claims
from experiment.experiments.base import drawn_lengths
from experiment.experiments.claims import SEARCHES, Judged
from experiment.experiments.found import FEWEST, Found
from experiment.experiments.parallel_sampling import PAPER
from experiment.files.shipped import CONFIGS
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message
from kvsim.paper.sharing import samples_sharing


def beams(
    shares: tuple[float, ...], searches: int = SEARCHES, random_weights: bool = False
) -> Judged:
    cells = [
        cell(i, {"beam_width": 2 * i + 2}, paged={"saved": each}).model_copy(
            update={"requests": searches}
        )
        for i, each in enumerate(shares)
    ]
    one = found_of("beam", *cells)
    return claimed("beams", Found(one.config, one.cells, random_weights))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [((0.40, 0.54, 0.56), "shown"), ((0.40, 0.90, 0.50), "not_shown")],  # the widest: too little
)
def test_each_width_is_held_against_its_own_figure_of_the_paper(
    shares: tuple[float, ...], verdict: str
) -> None:
    seen = beams(shares)
    assert seen.verdict == verdict
    assert seen.reason == message("claims.why.beams_searched", n=SEARCHES)


def test_the_shipped_full_size_draws_searches_enough() -> None:
    """Else no run of it could judge the claim."""
    config = load_config(CONFIGS / "beam.toml", {})
    assert len(drawn_lengths(config)) >= SEARCHES
    assert config.experiment.repeats >= FEWEST


@pytest.mark.parametrize("shares", [(0.40, 0.54, 0.56), (0.1, 0.1, 0.1)])
@pytest.mark.parametrize(
    ("searches", "random_weights", "why"),
    [
        (SEARCHES - 1, False, "beams_drawn"),
        (SEARCHES, True, "beams_random"),
        (4, True, "beams_random"),
    ],
)
def test_beams_of_a_few_searches_or_of_random_weights_decide_nothing(
    shares: tuple[float, ...], searches: int, random_weights: bool, why: str
) -> None:
    verdict, worst, key = told(beams(shares, searches, random_weights))
    assert (verdict, worst in shares, key) == ("untested", True, why)


def capacity(index: int, requests: int, slabs: tuple[int, float], paged: int) -> CellResult:
    """Steps and waste of slabs, steps of blocks, which waste a tenth."""
    made = cell(
        index, {"requests": requests}, slabs={"steps": slabs[0], "waste": slabs[1]},
        paged={"steps": paged, "waste": 0.1},
    )  # fmt: skip
    return made.model_copy(update={"requests": requests})


def test_what_is_saved_is_judged_at_the_most_requests_that_run_alike() -> None:
    """Of the first cells alone the smallest load would speak for all; the note is of the same."""
    cells = [capacity(0, 2, (90, 0.5), 90), capacity(1, 3, (99, 0.7), 99),
             capacity(2, 24, (400, 0.9), 200)]  # fmt: skip
    seen = claimed("saved", found_of("capacity", *cells))
    assert told(seen)[1] == pytest.approx(1 - 0.3 / 0.9)
    # (32, 16), (96, 24) and (16, 32): the last token of each needs no slot.
    assert seen.reason == message("claims.why.lengths", slots=64, mean=(47 + 119 + 47) / 3)


@pytest.mark.parametrize(
    ("gone", "key"), [(None, "steps_differ"), ("steps", "no_figure"), ("waste", "no_figure")]
)
def test_where_none_run_alike_it_is_said_that_they_do_not(gone: str | None, key: str) -> None:
    """Both arms ran, and counts need no repeats; of what is unknown nothing is said to differ."""
    cells = [capacity(0, 2, (90, 0.5), 80), capacity(1, 24, (400, 0.9), 200)]
    left = [
        arm.model_copy(update={"figures": {n: f for n, f in arm.figures.items() if n != gone}})
        for one in cells for arm in one.arms
    ]  # fmt: skip
    made = [one.model_copy(update={"arms": left[2 * n : 2 * n + 2]}) for n, one in enumerate(cells)]
    assert told(claimed("saved", found_of("capacity", *made))) == ("untested", None, key)


@pytest.mark.parametrize(
    ("slabs", "said"),
    [
        (1, ("with 256 slots, not with 512;", "with 512 slots, not with 1,024.")),
        (4, ("with 1,024 slots, the longest tried;", "with 512 slots, not with")),
    ],
)
def test_a_longer_context_stands_with_the_lengths_that_were_tried(
    slabs: int, said: tuple[str, str]
) -> None:
    """A length in between was not tried, so the quotient may be more or less."""

    def at(index: int, context: int, slabs: int, paged: int) -> CellResult:
        return cell(index, {"context": context}, slabs={"running_peak": slabs, "preemptions": 0},
                    paged={"running_peak": paged, "preemptions": 0})  # fmt: skip

    cells = [at(0, 256, 4, 4), at(1, 512, slabs, 4), at(2, 1024, slabs, 1)]
    seen = claimed("context", found_of("context", *cells))
    assert seen.verdict == ("shown" if slabs == 1 else "not_shown")
    assert seen.reason is not None
    text = Translator("en").message(seen.reason)
    assert all(one in text for one in said)
    assert "3 requests of 127.0 slots on average" in text
    assert all("{" not in Translator(lang).message(seen.reason) for lang in LANGUAGES)


@pytest.mark.parametrize("most", [[0.0125, 0.0168, 0.0175], [0.009, 0.0168, 0.0175]])
@pytest.mark.parametrize("least", [[0.0021, 0.0022, 0.0023], [0.005, 0.006, 0.0103]])
def test_a_limit_that_is_reached_in_any_repeat_is_not_kept(
    most: list[float], least: list[float]
) -> None:
    cells = [
        cell(n, {"context": slots}, paged={"lookup_of_step": shares})
        for n, (slots, shares) in enumerate(((64, least), (512, most)))
    ]
    seen = findings("lookup", *cells)["of_step"]
    assert (seen.verdict, why(seen), sides(seen)) == ("not_shown", None, {"512": most[1]})
    assert [(why(row), sides(row)) for row in seen.beside] == [(None, {"64": least[1]})]
    busy = findings("lookup", begun_busy(cells[0], "paged"), cells[1])["of_step"]
    assert [why(row) for row in busy.beside] == ["busy"]


@pytest.mark.parametrize(
    ("slabs", "paged", "verdict", "noted"),
    [
        (0.0, 0.0, "not_shown", True),  # both are reserved
        (0.05, 0.1, "not_shown", True),
        (0.5, 0.1, "shown", False),
        (1.0, 0.9, "not_shown", False),  # no less than the growing cache
        (0.0, 0.95, "not_shown", False),
        (None, 0.0, "untested", False),
    ],
)
def test_steadier_memory_is_paging_s_only_where_slabs_swing_more(
    slabs: float | None, paged: float, verdict: str, noted: bool
) -> None:
    """Where slabs stand as still, it is reserving that steadies memory."""
    arms: dict[str, Figures] = {
        "contiguous__growing": {"reserved_swing": 0.9},
        "slabs": {} if slabs is None else {"reserved_swing": slabs},
        "paged": {"reserved_swing": paged},
    }
    seen = claimed("steadier", found_of("capacity", cell(0, {"requests": 4}, **arms)))
    key = "reserved" if noted else "no_figure" if slabs is None else None
    assert told(seen) == (verdict, None if slabs is None else paged, key)
    parts = [part.value for part in seen.seen.parts] if seen.seen else [0.9, slabs, paged]
    assert parts == [0.9, slabs, paged]


SAMPLING = load_config(CONFIGS / "parallel-sampling.toml", {"experiment.size": "quick"})


def speeds(rates: Sequence[float], latencies: Sequence[float]) -> Figures:
    return {
        "tokens_per_s": rates, "loop_latency_s": latencies, "loop_latency_most_s": latencies,
        "running_mean": 3.2, "running_peak": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "flat", "sure"),
    [
        ([10.1, 10.2, 10.3], True, True),
        ([10.1, 10.2, 12.0], True, False),  # one repeat grew by a fifth
        ([20, 21, 22], False, True),
        ([10.2, 15, 16], False, False),  # one repeat hardly grew
        ([20, 21], False, False),
    ],
)
def test_where_an_arm_saturates_is_left_open_where_repeats_leave_it_open(
    more: list[float], flat: bool, sure: bool
) -> None:
    rates = ([1.0] * len(more), [10.0] * len(more), more)
    cells = [
        cell(n, {"concurrency": 2 ** (n + 1)}, paged=speeds(rate, [1.0]))
        for n, rate in enumerate(rates)
    ]
    seen = findings("concurrency", *cells)["saturation_paged"]
    assert (why(seen), seen.estimate) == ("growth", 4 if flat else None)
    assert ("saturation_open" not in notes(seen)) is sure


def test_fewer_than_three_numbers_say_nothing_of_saturation() -> None:
    ran: Figures = {"tokens_per_s": [10, 11, 12], "running_mean": 3.2, "running_peak": 4}
    more: Figures = {**ran, "tokens_per_s": [20, 21, 22]}
    seen = findings(
        "concurrency",
        cell(0, {"concurrency": 1}, paged=ran),
        cell(1, {"concurrency": 32}, slabs=ran, paged=more),
    )
    both = [seen[f"saturation_{name}"] for name in ("slabs", "paged")]
    assert [(one.verdict, why(one)) for one in both] == [
        ("untested", "missing"), ("untested", "needs")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "verdict"), [([140, 141, 142], "shown"), ([60, 61, 62], "not_shown")]
)
def test_no_claim_is_shown_that_its_finding_does_not_show(rates: list[float], verdict: str) -> None:
    """Four times as many at a time, and slower: of no use."""
    ran = cell(0, {"requests": 24}, slabs=SLABS, paged=budget(16.0, rates))
    # How long requests are beside a slab decides it, and somebody chose that.
    key = "lengths" if verdict == "shown" else "line"
    assert told(claimed("at_once", found_of("capacity", ran))) == (verdict, 4.0, key)


@pytest.mark.parametrize(
    ("off", "verdict"), [(0.0, "untested"), (-0.01, "not_shown"), (0.2, "shown")]
)
def test_samples_of_a_few_requests_stand_beside_many_that_are_drawn_alike(
    off: float, verdict: str
) -> None:
    """Ten save less than the paper's, many that are drawn alike more: the draw decides.

    Unless what was saved is not what the closed sum says.
    """
    claim = of_samples(off)
    assert claim.seen is not None
    many = {p.of: p.value for p in claim.seen.parts if p.name == "samples_many"}
    assert many == {n: share(10_000, n) for n in (2, 4)}
    assert told(claim)[::2] == (verdict, "few_drawn" if verdict == "untested" else None)


def test_a_lucky_draw_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten reach what is claimed, and many that are drawn alike would not."""
    for samples in (2, 4):
        monkeypatch.setitem(PAPER, samples, 0.02)
    monkeypatch.setattr(claims, "closed_sums", lambda *_: {2: 0.03, 4: 0.019})
    assert told(of_samples(0.0))[::2] == ("untested", "lucky_draw")
    monkeypatch.setattr(claims, "closed_sums", lambda *_: {2: 0.03, 4: 0.03})
    assert of_samples(0.0).verdict == "shown"


def share(requests: int, samples: int) -> float:
    drawn = drawn_lengths(SAMPLING, requests, cut=requests < 10_000)
    lengths = [(prompt, new) for prompt, new in drawn]
    return samples_sharing(lengths, samples, 16).share or 0.0


def of_samples(off: float) -> Judged:
    """The claim on samples; ``off`` by so much from what the closed sum says."""
    cells = [
        cell(i, {"samples": n}, paged={"saved": share(10, n) + off}).model_copy(
            update={"block_size": 16}
        )
        for i, n in enumerate((2, 4))
    ]
    return claimed("samples", Found(SAMPLING, cells))


GROWING = "contiguous.growing"


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
    return claimed("throughput", found_of("concurrency", *made))


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
    assert told(claim) == ("not_shown", value, "plain")
    assert claim.seen is not None
    assert (claim.seen.low, claim.seen.high) == (value, pytest.approx(value * 1.1))
    assert {part.name: part.value for part in claim.seen.parts} == factors


def test_which_is_faster_is_open_where_others_were_busy() -> None:
    """A growing cache that other programs slowed may have been the faster one."""
    first, most = cells(growing=8)
    assert told(throughput([begun_busy(first, GROWING), most]))[:2] == ("untested", None)
    assert throughput([first, most]).seen is not None


def test_a_throughput_that_was_not_repeated_is_not_judged() -> None:
    claim = throughput(cells(repeats=2))
    assert told(claim)[:2] == ("untested", None)
    assert "few" in codes(claim.reason)


@pytest.mark.parametrize("gone", [("slabs",), ("contiguous.batch",), ("contiguous.batch", "slabs")])
def test_without_each_of_its_factors_there_is_no_gain_to_tell(gone: tuple[str, ...]) -> None:
    """Nobody could say which part of it is paging's, however large it is."""
    first, most = cells(paged=[900, 900, 900])
    assert throughput([first, most]).verdict == "shown"
    left = [arm for arm in most.arms if arm.arm not in gone]
    made = [first, most.model_copy(update={"arms": left})]
    claim = throughput(made)
    assert told(claim)[:2] == ("untested", None)
    assert claim.reason == answer(findings("concurrency", *made)["whole"])
