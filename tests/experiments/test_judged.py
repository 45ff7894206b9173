"""What findings make of figures: means, not peaks; spreads, not one value; a rule that is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import (
    SLABS,
    Figures,
    assert_told,
    beside,
    budget,
    cell,
    claimed,
    codes,
    findings,
    found_of,
    notes,
    rate,
    sides,
    why,
    with_outputs,
)

from experiment.analysis.experiment_results import CellResult
from experiment.analysis.finding_text import answer
from experiment.config.reading import load_config
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import Found
from experiment.experiments.holes import HOLES
from experiment.experiments.registry import find_experiment
from experiment.files.shipped import CONFIGS
from experiment.text.messages import message


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
    claim = claimed("lookup", found_of("lookup", *cells))
    # The claim has no other reason than the finding: too noisy, or too few repeats.
    assert (claim.verdict, claim.reason) == (
        verdict, answer(seen) if verdict == "untested" else None
    )  # fmt: skip


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


@pytest.mark.parametrize(("arm", "caching", "hits"), [("paged", True, 32), ("vllm", True, 32),
                                                     ("vllm", False, None)])  # fmt: skip
def test_tokens_that_were_found_need_not_be_computed_to_be_counted_once(
    arm: str, caching: bool, hits: int | None
) -> None:
    """Of 44 tokens 32 were found at first, 2 behind a preemption; the last one needs no place.

    What vLLM finds is told by its own statistics.
    """
    theirs = [SimpleNamespace(prefix_hits=n) for n in (12, 20)] if arm == "vllm" else []
    request = SimpleNamespace(token_ids=[1] * 40, max_new_tokens=5)
    one: Any = SimpleNamespace(
        events=SimpleNamespace(
            engine_steps=theirs,
            prefix=None if theirs else SimpleNamespace(hit_cross=20, hit_batch=12),
        ),
        config=SimpleNamespace(engine=SimpleNamespace(prefix_caching=caching)),
        workload=SimpleNamespace(samples=lambda: [[request]]),
        rows=[SimpleNamespace(tokens=8, found_late=0), SimpleNamespace(tokens=2, found_late=2)],
    )
    assert FIGURES["prefix_hits"].measure(one) == hits
    assert FIGURES["recomputed"].measure(one) == (hits or 0) - 32


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


def reasons(name: str, *cells: CellResult, **asked: Any) -> dict[str, str]:
    """Of each finding without a verdict the key of its text, below ``experiments``."""
    config = load_config(CONFIGS / f"{name}.toml", {f"experiment.{k}": v for k, v in asked.items()})
    found = find_experiment(name).findings(Found(config, list(cells)))
    for finding in found:
        assert_told(finding)
    return {finding.id: why(finding) or "" for finding in found if finding.verdict == "untested"}


def context(index: int, length: int, slabs: int, paged: int, preempted: int = 0) -> CellResult:
    def ran(peak: int, preempted: int = 0) -> Figures:
        return {"running_peak": peak, "preemptions": preempted, "generate_s": [1, 2, 3]}

    return cell(index, {"context": length}, slabs=ran(slabs), paged=ran(paged, preempted))


def test_who_is_preempted_does_not_fit_beside_the_others() -> None:
    cells = [context(0, 256, 4, 4), context(1, 512, 2, 4), context(2, 1024, 1, 4, preempted=3)]
    assert sides(findings("context", *cells)["together"]) == {"slabs": 256, "paged": 512}


def test_requests_that_never_ran_all_at_a_time_are_no_arm_that_failed() -> None:
    cells = [context(0, 768, 2, 4), context(1, 1024, 1, 4)]
    assert reasons("context", *cells) == {"together": "never_together"}
    # Of an arm that ended well nowhere it is said so.
    failed = cell(0, {"context": 768}, paged={"running_peak": 4, "preemptions": 0})
    assert reasons("context", failed)["together"] == "missing"


def test_preemptions_that_there_were_none_of_are_no_arm_that_failed() -> None:
    ways = ("ample", "recompute", "swap", "first_chunk")
    cells = [gave_way(n, 4, way, ["a"], times=0) for n, way in enumerate(ways)]
    assert reasons("preemption", *cells) == {"outputs": "never_preempted"}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((16,), dict.fromkeys(("waste", "table", "speed"), "needs")),
        ((16, 64), {}),
        ((4, 64), {}),
    ],
)
def test_block_sizes_that_cannot_be_compared(
    sizes: tuple[int, ...], expected: dict[str, str]
) -> None:
    figures: Figures = {"waste": 0.1, "table_entries": 4.0, "step_s": [1, 2, 3]}
    cells = [
        cell(n, {"block_size": size}, paged=figures).model_copy(update={"block_size": size})
        for n, size in enumerate(sizes)
    ]
    told = reasons("block-size", *cells, values=sizes)
    assert told == expected
    # Where the sizes were asked for, one of them is missing for another reason.
    assert reasons("block-size", *cells[:1], values=[4, 16, 64])["speed"] == "missing"


@pytest.mark.parametrize(
    ("name", "axis", "values", "key"),
    [
        ("quantised", "kv_dtype", ("int8",), "needs"),
        ("quantised", "kv_dtype", ("auto",), "needs"),
        ("priority", "policy", ("fcfs",), "needs"),
        ("beam", "beam_width", (3,), "paper"),
        ("parallel-sampling", "samples", (3,), "paper"),
    ],
)
def test_values_that_a_comparison_takes_are_named(
    name: str, axis: str, values: tuple[Any, ...], key: str
) -> None:
    cells = [cell(n, {axis: value}, paged={"saved": 0.1}) for n, value in enumerate(values)]
    assert key in reasons(name, *cells, values=values).values()
    gone = [one.model_copy(update={"arms": []}) for one in cells]
    all_of_them = load_config(CONFIGS / f"{name}.toml", {}).experiment.values
    assert set(reasons(name, *gone, values=all_of_them).values()) == {"missing"}


@pytest.mark.parametrize(("questions", "key"), [(1, "needs"), (6, "missing")])
def test_one_question_has_no_later_one(questions: int, key: str) -> None:
    cells = [
        cell(n, {"rows": 25, "prefix_cache": cache}, paged={"first_ttft_s": [1, 1, 1]})
        for n, cache in enumerate(("off", "on"))
    ]
    told = reasons("prefix", *cells, options={"questions": questions})
    assert (told["later"], told["first"]) == (key, key)


FEW = ([100], [100, 101])


def ran(mean: float, steps: int, rates: list[float]) -> Figures:
    return {**budget(mean, rates), "steps": steps, "waste": 0.1}


@pytest.mark.parametrize("name", ["capacity", "lengths"])
@pytest.mark.parametrize(
    ("rates", "steps", "verdict"),
    [
        *((few, 120, "not_shown") for few in FEW),
        *((few, 90, "shown") for few in FEW),
        # Where times decide, more steps are no matter: they did not take longer.
        ([100, 101, 102], 120, "shown"),
    ],
)
def test_where_times_decide_nothing_steps_do(
    name: str, rates: list[float], steps: int, verdict: str
) -> None:
    """More at a time by preempting again and again is no gain, however few repeats there are."""
    axis = {"requests": 24} if name == "capacity" else {"shape": "short"}
    one = cell(0, {**axis}, slabs=ran(4.0, 100, rates), paged=ran(8.0, steps, rates))
    seen = findings(name, one)["at_once" if name == "capacity" else "short"]
    assert seen.verdict == verdict
    assert why(seen) == (None if verdict == "shown" else "later")
    assert sides(beside(seen)["paged"])["preemptions"] == 0
    told = beside(seen).get("steps")
    assert (sides(told) if told else None) == (
        None if len(rates) > 2 else {"paged": steps, "slabs": 100}
    )


def gave_way(index: int, size: int, way: str, outputs: list[str], times: int = 1) -> CellResult:
    figures: Figures = {
        "preemptions": times * (way != "ample"), "recomputed": 3, "swapped_blocks": 0, "steps": 9,
        "generate_s": [1.0, 1.1, 1.2],
    }  # fmt: skip
    made = cell(index, {"block_size": size, "preemption": way}, paged=figures)
    return with_outputs(made, outputs)


@pytest.mark.parametrize(("last", "equal"), [(["a", "b"], 8), (["a", "c"], 7)])
def test_outputs_of_all_cells_are_counted(last: list[str], equal: int) -> None:
    ways = [(size, way) for size in (16, 32) for way in ("ample", "recompute", "swap")]
    cells = [gave_way(n, *each, ["a", "b"]) for n, each in enumerate(ways)]
    seen = findings("preemption", *cells[:-1], gave_way(5, 32, "swap", last))["outputs"]
    assert (seen.estimate, seen.n) == (equal, 8)
    assert why(seen) == (None if equal == 8 else "digits")


QUIET = [0.0926, 0.0933, 0.0961]


def pair(
    whole: Sequence[float] = QUIET, first: Sequence[float] = (6.7, 6.8, 6.9)
) -> list[CellResult]:
    """Without the cache so long, and with it always alike; the first question likewise."""

    def one(index: int, cache: str, took: Sequence[float], paid: Sequence[float]) -> CellResult:
        figures: Figures = {
            "generate_s": took, "first_ttft_s": paid, "later_ttft_s": [2.4, 2.5, 2.6],
        }  # fmt: skip
        return cell(index, {"rows": 25, "prefix_cache": cache}, paged=figures)

    return [one(0, "off", whole, first), one(1, "on", QUIET, [7.9, 7.95, 8.0])]


SLOW, MIDDLE, FAST = [1.90, 1.95, 2.00], [1.63, 1.65, 1.68], [1.20, 1.26, 1.34]
WIDE = [1.20, 1.50, 1.80]


def cells(times: Mapping[int, Sequence[float]]) -> list[CellResult]:
    """Of each size the repeats of a step, in milliseconds."""
    made = []
    for index, (size, repeats) in enumerate(times.items()):
        figures: Figures = {
            "step_s": [one / 1000 for one in repeats],
            "tokens_per_s": [5000 / one for one in repeats],
        }
        one = cell(index, {"block_size": size}, paged=figures)
        made.append(one.model_copy(update={"block_size": size}))
    return made


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ({1: MIDDLE, 16: SLOW, 64: FAST, 256: FAST}, "not_shown"),
        ({1: MIDDLE, 16: FAST, 64: FAST}, "shown"),
        ({1: MIDDLE, 16: WIDE, 64: FAST, 256: FAST}, "shown"),
        # Half of them are not most.
        ({1: MIDDLE, 16: WIDE, 64: FAST}, "not_shown"),
        ({4: FAST, 64: SLOW}, "not_shown"),
        ({4: WIDE, 64: MIDDLE}, "not_shown"),
    ],
)
def test_the_smallest_blocks_are_held_against_each_size(
    times: Mapping[int, Sequence[float]], verdict: str
) -> None:
    seen = findings("block-size", *cells(times))["speed"]
    assert (seen.verdict, why(seen)) == (verdict, None if verdict == "shown" else "sizes")
    (_, first), *others = times.items()
    assert sides(seen) == {str(size): pytest.approx(first[1] / s[1]) for size, s in others}
    steps = beside(seen)["pair step_s paged"]
    assert sides(steps) == {str(size): each[1] / 1000 for size, each in times.items()}


def test_what_the_usual_size_costs_is_told() -> None:
    seen = findings("block-size", *cells({1: MIDDLE, 16: SLOW, 64: FAST}))["speed"]
    usual = beside(seen)["tokens_per_s"]
    assert [*sides(usual)] == ["16", "64"]
    assert usual.estimate == pytest.approx(1.26 / 1.95)
    best = findings("block-size", *cells({1: SLOW, 16: FAST}))["speed"]
    assert "tokens_per_s" not in beside(best)


def held(paged: Figures, slabs: Figures = SLABS) -> list[CellResult]:
    return [cell(0, {"requests": 24}, slabs=slabs, paged=paged)]


def wasted(*shares: float) -> list[CellResult]:
    return [cell(n, {"block_size": 2**n}, paged={"waste": share}) for n, share in enumerate(shares)]


def looked_up(*shares: list[float]) -> list[CellResult]:
    return [
        cell(n, {"context": 64 * 8**n}, paged={"lookup_of_step": each})
        for n, each in enumerate(shares)
    ]


MORE, ONCE, TWICE = budget(8.0, [140, 141, 142]), budget(4.0, [100]), budget(4.0, [100, 101])
FINDINGS: dict[str, tuple[str, list[CellResult], str, str, str | None]] = {
    "more at once": ("capacity", held(MORE), "at_once", "shown", None),
    "a peak before blocks are taken away again": (
        "capacity", held(budget(4.1, [140, 141, 142], peak=24, preemptions=60)), "at_once",
        "not_shown", "small"),
    "more, and clearly slower": (
        "capacity", held(budget(8.0, [60, 61, 62])), "at_once", "not_shown", "later"),
    "more, and slower but for a repeat": (
        "capacity", held(budget(8.0, [60, 61, 100])), "at_once", "shown", None),
    "one repeat": ("capacity", held(budget(8.0, [140]), ONCE), "throughput", "untested", "few"),
    "two repeats": (
        "capacity", held(budget(8.0, [140, 141]), TWICE), "throughput", "untested", "few"),
    "faster": ("capacity", held(budget(8.0, [150, 151, 152])), "throughput", "shown", None),
    # Slower is not the same as nothing seen, and a twentieth more is no gain.
    "overlaps": (
        "capacity", held(budget(8.0, [90, 105, 110])), "throughput", "not_shown", "overlap"),
    "slower": ("capacity", held(budget(8.0, [60, 61, 62])), "throughput", "not_shown", "opposite"),
    "hardly faster": (
        "capacity", held(budget(8.0, [103, 104, 105])), "throughput", "not_shown", "small"),
    # Noise at one context excuses nothing where another one is clearly dear.
    "clearly dear": (
        "lookup", looked_up([-0.05, 0.001, 0.05], [0.011, 0.012, 0.013]), "of_step", "not_shown",
        None),
    # Later questions are not the whole run.
    "whole run, unclear": (
        "prefix", pair([0.0628, 0.0898, 0.0997]), "whole", "not_shown", "overlap"),
    "whole run, shorter": ("prefix", pair([0.15, 0.16, 0.17]), "whole", "shown", None),
    "whole run, longer": ("prefix", pair([0.05, 0.051, 0.052]), "whole", "not_shown", "opposite"),
    # Few requests may leave as much in blocks of either size.
    "waste rises": ("block-size", wasted(0, 0, 0.05, 0.05, 0.3), "waste", "shown", None),
    "waste falls": ("block-size", wasted(0, 0.1, 0.05, 0.3), "waste", "not_shown", "sizes"),
    "waste stays": ("block-size", wasted(0.1, 0.1), "waste", "not_shown", "sizes"),
}  # fmt: skip


@pytest.mark.parametrize("name", FINDINGS)
def test_what_is_found(name: str) -> None:
    experiment, cells, finding, verdict, reason = FINDINGS[name]
    seen = findings(experiment, *cells)[finding]
    assert (seen.verdict, why(seen)) == (verdict, reason)
