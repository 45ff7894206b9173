"""No verdict on times of an arm that ran while other programs kept cores busy; counts stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import (
    SLABS,
    Figures,
    begun_busy,
    beside,
    budget,
    cell,
    findings,
    found_of,
    notes,
    sides,
    value,
    why,
)

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.analysis.finding_text import answer
from experiment.experiments.claims import Judged, judge
from experiment.experiments.found import ratio


def claim(name: str, experiment: str, *cells: CellResult) -> Judged:
    judged = judge({experiment: found_of(experiment, *cells)})
    return next(one for one in judged if one.claim.name == name)


def is_untested(seen: Finding) -> bool:
    """Whether it gives no verdict for a busy machine."""
    assert seen.verdict != "untested" or why(seen) == "busy"
    return seen.verdict == "untested"


def test_repeats_that_lie_apart_are_not_clear_on_a_busy_machine() -> None:
    fast, slow = value([140, 141, 142]), value([100, 101, 102])
    quiet, busy = (ratio(fast, slow, busy=each) for each in (False, True))
    assert quiet is not None
    assert busy is not None
    assert (quiet.enough, quiet.clear, quiet.lacking) == (True, True, None)
    assert (busy.enough, busy.clear, busy.lacking) == (False, False, "busy")
    slower = ratio(slow, fast, busy=True)
    assert slower is not None
    assert not slower.slower
    # Fewer repeats than it takes are too few on any machine.
    once = ratio(value([1, 2]), value([1, 2]), busy=True)
    assert once is not None
    assert once.lacking == "few"


@pytest.mark.parametrize(
    ("busy", "untested"),
    [((), False), (("slabs",), True), (("paged",), True), (("contiguous.batch",), False)],
)
def test_either_side_of_a_comparison_may_have_begun_busy(
    busy: tuple[str, ...], untested: bool
) -> None:
    paged = budget(8.0, [140, 141, 142], preemptions=3)
    ran = cell(0, {"requests": 24}, slabs=SLABS, paged=paged, contiguous__batch=SLABS)
    seen = findings("capacity", begun_busy(ran, *busy))
    assert is_untested(seen["throughput"]) is untested
    # More at a time is counted; beside it the speeds are not compared.
    assert seen["at_once"].verdict == "shown"
    assert (why(beside(seen["at_once"])["tokens_per_s"]) == "busy") is untested
    assert sides(seen["preempting"]) == {"24": 3}


def concurrency(busy: str | None) -> list[CellResult]:
    """Three numbers at a time; ``busy`` is an arm that began so with the most, or where it ran."""

    def ran(rate: float) -> Figures:
        return {"tokens_per_s": [rate] * 3, "loop_latency_s": [100 / rate] * 3,
                "running_mean": 3.2, "running_peak": 4}  # fmt: skip

    first = cell(0, {"concurrency": 1}, contiguous__sequential=ran(10), contiguous__batch=ran(10),
                 slabs=ran(12), paged=ran(12))  # fmt: skip
    more = cell(1, {"concurrency": 8}, contiguous__batch=ran(15), slabs=ran(30), paged=ran(60))
    most = cell(2, {"concurrency": 32}, contiguous__batch=ran(20), slabs=ran(60), paged=ran(300))
    if busy == "contiguous.sequential":
        return [begun_busy(first, busy), more, most]
    return [first, more, begun_busy(most, busy) if busy else most]


@pytest.mark.parametrize(
    ("busy", "steps"),
    [
        (None, set()),
        ("contiguous.sequential", {"batching"}),
        ("contiguous.batch", {"batching", "engine"}),
        ("slabs", {"engine", "paging"}),
        ("paged", {"paging"}),
    ],
)
def test_a_gain_is_judged_where_none_of_its_steps_began_busy(
    busy: str | None, steps: set[str]
) -> None:
    cells = concurrency(busy)
    seen = findings("concurrency", *cells)
    assert {name for name in ("batching", "engine", "paging") if is_untested(seen[name])} == steps
    assert is_untested(seen["whole"]) is (busy is not None)
    throughput = claim("throughput", "concurrency", *cells)
    assert throughput.verdict == ("shown" if busy is None else "untested")
    assert throughput.seen is None or busy is None
    assert throughput.reason is not None
    assert throughput.reason.key == (
        "experiments.found.line" if busy else "experiments.concurrency.plain"
    )


@pytest.mark.parametrize(("busy", "steps"), [("paged", True), ("contiguous.batch", False)])
def test_where_times_decide_nothing_the_steps_of_paging_alone_are_told(
    busy: str, steps: bool
) -> None:
    def counted(one: CellResult) -> CellResult:
        """With 208 steps in slabs and 128 in blocks."""
        arms = [
            arm.model_copy(
                update={"figures": {**arm.figures, "steps": value(128 + 80 * (arm.arm == "slabs"))}}
            )
            for arm in one.arms
        ]
        return one.model_copy(update={"arms": arms})

    seen = findings("concurrency", *map(counted, concurrency(busy)))
    # The headline is that of the whole gain, of which any step may have begun busy.
    assert next(iter(seen)) == "whole"
    for name, said in (("whole", True), ("paging", steps)):
        rows = beside(seen[name])
        assert ("steps" in rows) is said
        if said:
            assert sides(rows["steps"]) == {"paged": 128, "slabs": 208}
            assert is_untested(seen[name])
    told = claim("throughput", "concurrency", *map(counted, concurrency(busy)))
    assert (told.seen, told.verdict, told.reason) == (None, "untested", answer(seen["whole"]))


@pytest.mark.parametrize(("busy", "told"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_busy_number_before_saturation_leaves_it_open(busy: int, told: bool) -> None:
    """From the second to the third it grows no more; what comes after that decides nothing."""
    cells = [
        cell(n, {"concurrency": 2**n}, paged={"tokens_per_s": [rate] * 3})
        for n, rate in enumerate((10, 20, 21, 41))
    ]
    cells[busy] = begun_busy(cells[busy], "paged")
    seen = findings("concurrency", *cells)["saturation_paged"]
    assert (why(seen), seen.estimate, "busy" in notes(seen)) == ("growth", 2, told)


def test_latency_and_saturation_say_that_the_machine_was_busy() -> None:
    seen = findings("concurrency", *concurrency("slabs"))
    open_ = {name: "busy" in notes(seen[f"saturation_{name}"])
             for name in ("slabs", "paged", "contiguous_batch")}  # fmt: skip
    assert open_ == {"slabs": True, "paged": False, "contiguous_batch": False}


@pytest.mark.parametrize(
    ("quiet", "verdict"), [([0.001, 0.002, 0.003], "untested"), ([0.02, 0.03, 0.04], "not_shown")]
)
def test_what_the_table_costs_is_not_told_on_a_busy_machine(
    quiet: list[float], verdict: str
) -> None:
    """Unless it is clearly dear at a context that began on a quiet one."""

    def at(index: int, context: int, shares: Sequence[float]) -> CellResult:
        ran: Figures = {"lookup_of_step": shares, "lookup_share": shares,
                        "lookup_scattered_s": [3, 3, 3], "lookup_ordered_s": [1, 1, 1]}  # fmt: skip
        return cell(index, {"context": context}, paged=ran)

    busy = begun_busy(at(1, 512, [0.05, 0.06, 0.07]), "paged")
    cells = [at(0, 64, quiet), busy]
    seen = findings("lookup", *cells)
    assert seen["of_step"].verdict == verdict
    assert is_untested(seen["scattered"])
    rows = (seen["of_attention"], *seen["of_attention"].beside)
    assert [why(row) for row in rows] == [None, "busy"]
    judged = claim("lookup", "lookup", *cells)
    assert judged.verdict == verdict
    assert judged.seen is None or judged.seen.value == 0.03
    if verdict == "untested":
        assert judged.reason == answer(seen["of_step"])
        assert is_untested(seen["of_step"])


@pytest.mark.parametrize("busy", ["off", "on"])
def test_questions_are_not_compared_where_one_of_the_cells_began_busy(busy: str) -> None:
    def one(index: int, cache: str, later: float) -> CellResult:
        figures: Figures = {
            "first_ttft_s": [4.0, 4.1, 4.2], "later_ttft_s": [later] * 3, "computed": 100 - index,
            "prefix_hits": 16 * index,
        }  # fmt: skip
        made = cell(index, {"rows": 25, "prefix_cache": cache}, paged=figures, vllm=figures)
        return begun_busy(made, "paged", "vllm") if cache == busy else made

    seen = findings("prefix", one(0, "off", 4.0), one(1, "on", 1.0))
    assert is_untested(seen["later"])
    # The first one is the headline: it tells what was counted.
    assert list(seen)[:2] == ["tokens", "later"]
    assert is_untested(seen["first"]) is (busy == "on")
    assert why(beside(seen["vllm"])["later_ttft_s"]) == "busy"
    assert seen["tokens"].verdict == "shown"


def test_settings_are_not_compared_where_one_of_the_cells_began_busy() -> None:
    def of(name: str, finding: str, first: CellResult, second: CellResult) -> list[bool]:
        """Of both quiet, and of either one busy."""
        ways = (
            (first, second),
            (begun_busy(first, "paged"), second),
            (first, begun_busy(second, "paged")),
        )
        return [is_untested(findings(name, *cells)[finding]) for cells in ways]

    def ran(**figures: float) -> Figures:
        return {name: [value] * 3 for name, value in figures.items()}

    sizes = [cell(n, {"block_size": size}, paged=ran(step_s=n + 1.0)).model_copy(
        update={"block_size": size}) for n, size in enumerate((1, 16))]  # fmt: skip
    assert of("block-size", "speed", sizes[0], sizes[1]) == [False, True, True]
    own, other = (cell(n, {"kv_dtype": kind}, paged=ran(tokens_per_s=n + 1.0))
                  for n, kind in enumerate(("auto", "int8")))  # fmt: skip
    assert of("quantised", "speed", own, other) == [False, True, True]
    fcfs, urgent = (cell(n, {"policy": kind}, paged=ran(urgent_first_s=2.0 - n))
                    for n, kind in enumerate(("fcfs", "priority")))  # fmt: skip
    assert of("priority", "seconds", fcfs, urgent) == [False, True, True]


def test_what_giving_way_took_is_not_told_of_a_busy_machine() -> None:
    figures: Figures = {"preemptions": 1, "recomputed": 9, "swapped_blocks": 0, "steps": 9,
                        "generate_s": [1, 1, 1]}  # fmt: skip
    ample, short = (cell(n, {"block_size": 4, "preemption": way}, paged=figures, vllm=figures)
                    for n, way in enumerate(("ample", "recompute")))  # fmt: skip
    slow, slower = (begun_busy(one, "paged", "vllm") for one in (ample, short))
    ways = ((ample, short), (ample, slower), (slow, slower), (slow, short))
    seen = [findings("preemption", *cells) for cells in ways]
    for name in ("recompute", "vllm"):
        said = [why(beside(one[name])["generate_s"]) for one in seen]
        assert said == ["overlap", "busy", "busy", "busy"]
    assert sides(seen[-1]["recompute"])["recomputed"] == 9


def rate(index: int, at: float, kept: float, later: float) -> CellResult:
    figures: Figures = {"kept_up": [kept] * 3, "later_tokens": [later] * 3,
                        "latency_s": [1.0, 1.0, 1.0]}  # fmt: skip
    return cell(index, {"rate": at, "clock": "wall"}, slabs=figures, paged=figures)


def test_a_queue_on_a_busy_machine_may_be_that_of_others() -> None:
    bore, queued, more = rate(0, 1.0, 1.0, 1.0), rate(1, 2.0, 0.5, 2.0), rate(2, 4.0, 0.4, 3.0)
    seen = findings("serving", bore, begun_busy(queued, "slabs"), more)
    assert is_untested(seen["first"])
    assert "busy" in notes(seen["limit_slabs"])
    assert "busy" not in notes(seen["limit_paged"])
    # What is beyond the limit decides nothing.
    seen = findings("serving", bore, queued, begun_busy(more, "slabs", "paged"))
    assert seen["first"].estimate == 2.0
    assert "busy" not in notes(seen["first"])
    assert "busy" not in notes(seen["limit_slabs"])
    assert is_untested(seen["paging"])


def test_that_no_queue_was_seen_on_a_busy_machine_is_not_said_without_it() -> None:
    """Who is slowed in the first half of the arrivals is no later in the second."""
    bore, queued = rate(0, 1.0, 1.0, 1.0), rate(1, 2.0, 0.5, 2.0)
    seen = findings("serving", begun_busy(bore, "slabs"), queued)
    assert seen["first"].estimate == 2.0
    assert "busy" in notes(seen["first"])
    assert "busy" in notes(seen["limit_slabs"])
    assert "busy" not in notes(seen["limit_paged"])
    falls_behind = rate(1, 2.0, 0.05, 1.0)
    for cells, key in (((), "sustained"), ((begun_busy(falls_behind, "slabs"),), "queue")):
        seen = findings("serving", begun_busy(bore, "slabs"), *cells)
        assert seen["first"].estimate is None
        assert "busy" in notes(seen["first"])
        assert why(seen["limit_slabs"]) == key
        assert "busy" in notes(seen["limit_slabs"])
        assert "busy" not in notes(seen["limit_paged"])
