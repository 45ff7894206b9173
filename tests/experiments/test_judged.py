"""What findings make of figures: means, not peaks; spreads, not one value; a rule that is said."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from types import SimpleNamespace

import pytest
from made_up import (
    SLABS,
    Figures,
    beside,
    budget,
    cell,
    codes,
    findings,
    found_of,
    notes,
    sides,
    value,
    why,
)

from experiment.analysis.experiment_results import CellResult, Number
from experiment.analysis.finding_text import answer
from experiment.experiments.claims import judge
from experiment.experiments.figures import FIGURES, _percentile
from experiment.experiments.found import ratio
from experiment.experiments.holes import HOLES
from experiment.experiments.registry import find_experiment
from experiment.text.messages import message


@pytest.mark.parametrize(
    ("paged", "verdict"),
    [
        (budget(8.0, [140, 141, 142]), "shown"),
        # A moment's peak before blocks are taken away again is no gain.
        (budget(4.1, [140, 141, 142], peak=24, preemptions=60), "not_shown"),
        # More at a time, and clearly slower.
        (budget(8.0, [60, 61, 62]), "not_shown"),
        # As slow in one of the repeats as in slabs: not clearly slower.
        (budget(8.0, [60, 61, 100]), "shown"),
    ],
)
def test_more_at_a_time_is_a_mean_and_not_slower(paged: Figures, verdict: str) -> None:
    seen = findings("capacity", cell(0, {"requests": 24}, slabs=SLABS, paged=paged))["at_once"]
    assert seen.verdict == verdict
    assert sides(beside(seen)["paged"])["preemptions"] == paged["preemptions"]


def test_the_headline_says_the_least_as_well_as_the_most() -> None:
    cells = [
        cell(index, {"requests": index}, slabs=SLABS, paged=budget(mean, [100, 101, 102]))
        for index, mean in enumerate((4.0, 12.0, 8.0))
    ]
    over = beside(findings("capacity", *cells)["at_once"])["over paged slabs running_mean"]
    assert list(sides(over).values()) == [1.0, 3.0, 2.0]


@pytest.mark.parametrize("repeats", [1, 2])
def test_too_few_repeats_make_nothing_clear(repeats: int) -> None:
    paged = budget(8.0, [140, 141][:repeats])
    slabs = budget(4.0, [100, 101][:repeats])
    seen = findings("capacity", cell(0, {"requests": 24}, slabs=slabs, paged=paged))
    assert (seen["throughput"].verdict, why(seen["throughput"])) == ("untested", "few")
    assert why(beside(seen["at_once"])["tokens_per_s"]) == "few"


def test_three_repeats_that_lie_apart_are_clear_and_their_spread_is_said() -> None:
    apart = ratio(value([140, 141, 142]), value([100, 101, 102]), busy=False)
    assert apart is not None
    assert apart.clear
    assert (apart.low, apart.high) == (140 / 102, 1.42)
    meet = ratio(value([140, 141, 142]), value([100, 101, 140]), busy=False)
    assert meet is not None
    assert not meet.clear


def test_who_is_preempted_does_not_fit_beside_the_others() -> None:
    def one(index: int, context: int, slabs: int, preempted: int) -> CellResult:
        return cell(
            index, {"context": context},
            slabs={"running_peak": slabs, "preemptions": 0},
            paged={"running_peak": 4, "preemptions": preempted},
        )  # fmt: skip

    seen = findings("context", one(0, 256, 4, 0), one(1, 512, 2, 0), one(2, 1024, 1, 3))["together"]
    assert sides(seen) == {"slabs": 256, "paged": 512}


@pytest.mark.parametrize(
    ("repeats", "verdict", "key"),
    [
        ([0.001, 0.002, 0.003], "shown", None),
        ([-0.002, 0.001, 0.003], "shown", "overlap"),
        ([-0.004, -0.002, 0.0], "shown", "overlap"),
        ([-0.02, 0.001, 0.03], "untested", "both_sides"),
        ([0.001, 0.002, 0.03], "not_shown", None),
        ([0.001, 0.002], "untested", "few"),
    ],
)
def test_a_cost_whose_repeats_straddle_zero(
    repeats: list[float], verdict: str, key: str | None
) -> None:
    ran: Figures = {
        "lookup_of_step": repeats, "lookup_share": repeats,
        "lookup_scattered_s": [1, 1, 1], "lookup_ordered_s": [1, 1, 1],
    }  # fmt: skip
    cells = [cell(0, {"context": 64}, paged=ran)]
    seen = findings("lookup", *cells)["of_step"]
    assert (seen.verdict, why(seen)) == (verdict, key)
    claim = next(
        j for j in judge({"lookup": found_of("lookup", *cells)}) if j.claim.name == "lookup"
    )
    assert claim.verdict == verdict
    # The claim has no other reason than the finding: too noisy, or too few repeats.
    assert claim.reason == (answer(seen) if verdict == "untested" else None)


def test_where_one_context_is_clearly_dear_noise_at_another_excuses_nothing() -> None:
    def at(index: int, context: int, repeats: list[float]) -> CellResult:
        return cell(index, {"context": context}, paged={"lookup_of_step": repeats})

    noisy, dear = [-0.05, 0.001, 0.05], [0.011, 0.012, 0.013]
    seen = findings("lookup", at(0, 64, noisy), at(1, 512, dear))["of_step"]
    assert (seen.verdict, sides(seen)) == ("not_shown", {"512": 0.012})


@pytest.mark.parametrize(
    ("shares", "reason"),
    [
        ([-0.1361, -0.0146, 0.0029], "overlap"),
        ([0.0219, 0.0227, 0.0518], None),
        ([-0.03, -0.02, -0.01], None),
        ([0.01, 0.02], "few"),
    ],
)
def test_what_the_table_adds_to_attention_is_said_only_where_repeats_agree(
    shares: list[float], reason: str | None
) -> None:
    cells = [cell(n, {"context": slots}, paged={"lookup_share": shares})
             for n, slots in enumerate((64, 512))]  # fmt: skip
    seen = findings("lookup", *cells)["of_attention"]
    for row, slots in ((seen, "64"), (seen.beside[0], "512")):
        assert (why(row), sides(row)) == (reason, {slots: median(shares)})
        assert (row.low, row.high) == (min(shares), max(shares))


@pytest.mark.parametrize(
    ("scattered", "reason"),
    [([1.0, 1.1, 1.2], "overlap"), ([1.3, 1.4, 1.5], None), ([0.5, 0.6, 0.7], None)],
)
def test_where_blocks_lie_matters_only_where_repeats_lie_apart(
    scattered: list[float], reason: str | None
) -> None:
    ran: Figures = {"lookup_scattered_s": scattered, "lookup_ordered_s": [1.0, 1.1, 1.2]}
    seen = findings("lookup", cell(0, {"context": 64}, paged=ran))["scattered"]
    assert (why(seen), seen.estimate) == (reason, scattered[1] / 1.1)


@pytest.mark.parametrize(
    ("later", "reason"),
    [([0.1, 0.2, 0.3], None), ([0.9, 1.0, 1.1], "overlap"), ([3.0, 3.1, 3.2], None)],
)
def test_the_first_question_pays_only_where_repeats_lie_apart(
    later: list[float], reason: str | None
) -> None:
    def one(index: int, cache: str) -> CellResult:
        figures: Figures = {"first_ttft_s": [1.0, 1.1, 1.2], "later_ttft_s": later}
        return cell(index, {"rows": 25, "prefix_cache": cache}, paged=figures)

    seen = findings("prefix", one(0, "off"), one(1, "on"))["first"]
    assert (why(seen), seen.estimate) == (reason, 1.1 / later[1])


@pytest.mark.parametrize(
    ("rates", "reason"),
    [
        ([90, 105, 110], "overlap"),
        ([60, 61, 62], "opposite"),
        ([103, 104, 105], "small"),
        ([150, 151, 152], None),
    ],
)
def test_what_speaks_against_a_faster_run_is_said(rates: list[float], reason: str | None) -> None:
    """Slower is not the same as nothing seen, and a twentieth more is no gain."""
    ran = cell(0, {"requests": 24}, slabs=SLABS, paged=budget(8.0, rates))
    assert why(findings("capacity", ran)["throughput"]) == reason


def rate(index: int, rate: float, **arms: tuple[float, float]) -> CellResult:
    """A rate by the wall clock: of each arm, who ended of those who came, and how much later."""
    figures: dict[str, Figures] = {
        arm: {"kept_up": [kept] * 3, "later_tokens": [later] * 3, "latency_s": [1.0, 1.1, 1.2]}
        for arm, (kept, later) in arms.items()
    }
    return cell(index, {"rate": rate, "clock": "wall"}, **figures)


def test_saturation_takes_both_a_queue_and_requests_that_wait() -> None:
    seen = findings(
        "serving",
        rate(0, 1.0, slabs=(0.9, 1.0), paged=(1.0, 1.0)),  # few ended, but nobody waited longer
        rate(1, 2.0, slabs=(0.8, 1.5), paged=(1.0, 1.5)),  # waited longer, but all ended
        rate(2, 4.0, slabs=(0.5, 2.0), paged=(0.7, 1.6)),
    )
    assert (seen["first"].estimate, sides(seen["first"])) == (2.0, {"slabs": 2.0, "paged": 4.0})
    assert notes(seen["first"])["first_rule"] == {"keeps_up": 0.95, "later": 1.2}
    assert [seen[f"limit_{arm}"].estimate for arm in ("slabs", "paged")] == [2.0, 4.0]


@pytest.mark.parametrize(
    ("later", "queued", "key"),
    [([1.5, 1.1, 2.0], 2, "queue"), ([1.5, 1.3, 2.0], 3, "saturated")],
)
def test_a_queue_that_did_not_grow_in_every_repeat_is_no_saturation(
    later: Sequence[float], queued: int, key: str
) -> None:
    """By the medians, 0.6 and 1.5, it would be: a machine busy with something else is enough."""
    figures: Figures = {"kept_up": [0.5, 0.6, 0.7], "later_tokens": later, "latency_s": [1, 1, 1]}
    told = findings("serving", cell(0, {"rate": 4, "clock": "wall"}, slabs=figures))["limit_slabs"]
    assert told.reason == message(f"experiments.why.{key}", queued=queued, repeats=3)


def test_who_had_no_time_to_end_is_not_called_unsaturated() -> None:
    """Where arrivals are over before anybody ends, no queue is seen to grow, either."""
    seen = findings(
        "serving",
        rate(0, 2.0, slabs=(1.0, 1.0), paged=(1.0, 1.0), vllm=(0.1, 1.0)),
        rate(1, 8.0, slabs=(0.5, 2.0), paged=(0.4, 1.0), vllm=(0.0, 1.0)),
    )
    assert codes(notes(seen["first"])["first_open"]["arms"]) == ["and", "paged", "vllm"]
    for arm, below in (("paged", {"rate": 2.0}), ("vllm", None)):
        told = seen[f"limit_{arm}"]
        assert (why(told), notes(told).get("below")) == ("queue", below)
    alone = findings("serving", rate(0, 8.0, paged=(0.4, 1.0)))["first"]
    assert (why(alone), "first_open" in notes(alone)) == ("sustained", True)


def test_where_nobody_is_saturated_that_is_said() -> None:
    seen = findings("serving", rate(0, 1.0, slabs=(1.0, 1.0), paged=(1.0, 1.0)))
    assert why(seen["first"]) == why(seen["limit_slabs"]) == "sustained"
    assert sides(seen["first"]) == {"slabs": None, "paged": None}


def test_what_giving_way_cost_is_counted_and_its_time_heeds_the_spread() -> None:
    def one(index: int, way: str, steps: int, again: int, times: Sequence[float]) -> CellResult:
        figures: Figures = {
            "preemptions": int(again > 0), "recomputed": again, "swapped_blocks": 0,
            "steps": steps, "generate_s": times,
        }  # fmt: skip
        return cell(index, {"block_size": 4, "preemption": way}, paged=figures)

    ample = one(0, "ample", 112, 0, [1.0, 1.1, 1.2])

    def time(times: Sequence[float]) -> tuple[str | None, Number | None]:
        seen = findings("preemption", ample, one(1, "recompute", 179, 420, times))["recompute"]
        assert sides(seen)["recomputed"] == 420
        assert sides(beside(seen)["steps"]) == {"recompute": 179, "ample": 112}
        row = beside(seen)["generate_s"]
        return why(row), row.estimate

    assert time([1.5, 1.6, 1.7]) == (None, 1.6 / 1.1)
    assert time([1.1, 1.6, 1.7])[0] == "overlap"
    assert time([0.5, 0.6, 0.7]) == (None, 0.6 / 1.1)
    assert time([1.5, 1.6])[0] == "few"


def test_each_smaller_precision_is_told_by_its_name() -> None:
    figures: Figures = {
        "block_bytes": 64, "blocks": 8, "running_mean": 2.0, "preemptions": 0,
        "tokens_per_s": [1, 2, 3],
    }  # fmt: skip
    names = ("auto", "int8", "fp8")
    cells = [cell(i, {"kv_dtype": name}, paged=figures) for i, name in enumerate(names)]
    made = find_experiment("quantised").findings(found_of("quantised", *cells))
    told = [next(iter(sides(each))) for each in made if each.verdict != "untested"]
    assert told == ["int8"] * 2 + ["fp8"] * 2


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (95, 20), (99, 100)])
def test_a_percentile_takes_requests_enough(percent: int, least: int) -> None:
    measure = _percentile(float, percent)  # type: ignore[arg-type]

    def of(count: int) -> float | None:
        requests = list(range(count, 0, -1))
        return measure(SimpleNamespace(requests=requests))  # type: ignore[arg-type]

    assert of(least) == least * percent / 100
    assert of(least - 1) is None


def test_tokens_that_vllm_finds_are_those_of_its_own_statistics() -> None:
    steps = [SimpleNamespace(prefix_hits=32), SimpleNamespace(prefix_hits=64)]

    def found(caching: bool) -> object:
        config = SimpleNamespace(engine=SimpleNamespace(prefix_caching=caching))
        events = SimpleNamespace(engine_steps=steps, prefix=None)
        one = SimpleNamespace(events=events, config=config)
        return FIGURES["prefix_hits"].measure(one)  # type: ignore[arg-type]

    assert found(caching=True) == 96
    assert found(caching=False) is None


@pytest.mark.parametrize("arm", ["paged", "vllm"])
def test_tokens_that_were_found_need_not_be_computed_to_be_counted_once(arm: str) -> None:
    """Of 44 tokens 32 were found at first, 2 behind a preemption; the last one needs no place."""
    theirs = [SimpleNamespace(prefix_hits=32)] if arm == "vllm" else []
    request = SimpleNamespace(token_ids=[1] * 40, max_new_tokens=5)
    one = SimpleNamespace(
        events=SimpleNamespace(
            engine_steps=theirs,
            prefix=None if theirs else SimpleNamespace(hit_cross=20, hit_batch=12),
        ),
        config=SimpleNamespace(engine=SimpleNamespace(prefix_caching=True)),
        workload=SimpleNamespace(samples=lambda: [[request]]),
        rows=[SimpleNamespace(tokens=8, found_late=0), SimpleNamespace(tokens=2, found_late=2)],
    )
    assert FIGURES["recomputed"].measure(one) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("shown", [True, False])
def test_what_blocks_gain_over_an_arena_is_not_all_its_holes(shown: bool) -> None:
    seen: Figures = {
        "first_fit_refused_steps": 3, "first_fit_steps": 90, "first_fit_running_mean": 4.0,
        "steps": 60, "running_mean": 8.0 if shown else 4.0, "preemptions": 0,
    }  # fmt: skip
    told = findings(HOLES.name, cell(0, {"requests": 24}, paged=seen))["paged"]
    assert told.verdict == ("shown" if shown else "not_shown")
    # Where nothing is gained there is nothing to share out.
    assert ("paged_ahead" in notes(told)) is shown
    assert why(told) == (None if shown else "small")
