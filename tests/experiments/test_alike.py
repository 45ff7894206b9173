"""Where blocks let no more run than slabs it is noted, with what that does to the time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Figures, begun_busy, beside, budget, cell, findings, notes, sides, why

from experiment.analysis.experiment_results import CellResult

FAST, SLOW = [2300, 2310, 2320], [1700, 1710, 1720]
OVER = "over paged slabs "


def capacity(
    index: int, paged: Sequence[float], mean: float = 2.75, steps: int = 64, slabs: float = 2.75
) -> CellResult:
    """Requests with ``paged`` tokens per second in blocks, beside fast slabs of 64 steps."""
    return cell(
        index, {"requests": 4 * (index + 1)},
        slabs={**budget(slabs, FAST[: len(paged)]), "steps": 64},
        paged={**budget(mean, paged), "steps": steps},
    )  # fmt: skip


@pytest.mark.parametrize("other", [{"mean": 4.0}, {"steps": 60}, {"mean": 4.0, "steps": 60}])
def test_where_more_run_or_in_fewer_steps_it_is_not_said(other: dict[str, float]) -> None:
    seen = findings("capacity", capacity(0, SLOW, **other))["throughput"]  # type: ignore[arg-type]
    assert "alike" not in notes(seen)


def test_each_number_at_which_nothing_is_gained_is_named() -> None:
    """Of the last one, where paging is faster, it says nothing."""
    cells = (capacity(0, SLOW), capacity(1, FAST), capacity(2, [4000, 4010, 4020], 5.0, 30))
    seen = findings("capacity", *cells)["throughput"]
    two = notes(seen)["alike"]["cells"]["params"]
    assert [two[name]["params"]["value"] for name in ("one", "other")] == ["4", "8"]
    assert sides(beside(seen)[OVER + "tokens_per_s"]) == {
        "4": 1710 / 2310, "8": 1.0, "12": 4010 / 2310,
    }  # fmt: skip


def timed(seconds: Sequence[float], mean: float = 4.0, steps: int = 16) -> Figures:
    return {"running_mean": mean, "running_peak": 4, "preemptions": 0, "steps": steps,
            "generate_s": seconds}  # fmt: skip


SHORT = cell(0, {"context": 512}, slabs=timed([0.0435, 0.0449, 0.0453]),
             paged=timed([0.0461, 0.0467, 0.0477]))  # fmt: skip
LONG = cell(1, {"context": 1024}, slabs=timed([0.22, 0.23, 0.24], 2.0, 32),
            paged=timed([0.09, 0.1, 0.11]))  # fmt: skip


def test_a_longer_context_is_told_in_time_too() -> None:
    """At the short one as many run, and blocks are slower; at the long one they are faster."""
    seen = findings("context", SHORT, LONG)["time"]
    assert (seen.verdict, why(seen)) == (None, None)
    assert sides(seen) == {"512": 0.0467 / 0.0449, "1,024": pytest.approx(0.1 / 0.23)}
    assert (seen.sides[0].low, seen.sides[0].high) == (0.0461 / 0.0453, 0.0477 / 0.0435)
    assert notes(seen)["alike"]["cells"]["params"]["value"] == "512"


def test_a_time_of_a_busy_machine_is_marked_and_decides_nothing_alone() -> None:
    seen = findings("context", begun_busy(SHORT, "paged"), LONG)["time"]
    assert (seen.verdict, why(seen)) == (None, "busy")
    alone = findings("context", begun_busy(SHORT, "paged"))["time"]
    assert (alone.verdict, why(alone)) == ("untested", "busy")


def classes(index: int, policy: str, paged: Sequence[float], peak: int = 4) -> CellResult:
    def ran(seconds: Sequence[float], peak: int) -> Figures:
        return {"urgent_first_steps": 9 - index, "patient_first_steps": 9 + index, "steps": 120,
                "running_peak": peak, "urgent_first_s": seconds}  # fmt: skip

    slabs = ran([0.0101, 0.0105, 0.0106], 4)
    return cell(index, {"policy": policy}, slabs=slabs, paged=ran(paged, peak), vllm=slabs)


def test_priorities_without_paging_say_what_blocks_cost() -> None:
    slow, meet = [0.0148, 0.0162, 0.0206], [0.0099, 0.0105, 0.0110]
    seen = findings("priority", classes(0, "fcfs", meet), classes(1, "priority", slow))
    times = sides(beside(seen["slabs"])[OVER + "urgent_first_s"])
    assert times == {"fcfs": 1.0, "priority": 0.0162 / 0.0105}
    assert ("alike" in notes(seen["slabs"]), "alike" in notes(seen["vllm"])) == (True, False)
    more = findings("priority", classes(0, "fcfs", meet, 9), classes(1, "priority", slow, 9))
    assert "alike" not in notes(more["slabs"])


@pytest.mark.parametrize(("last", "equal"), [("b", 4), ("c", 2)])
def test_sharing_that_lets_no_more_run_bought_nothing(last: str, equal: int) -> None:
    def ran(saved: float, rates: Sequence[float]) -> Figures:
        return {"saved": saved, "copied_slots": 9, "steps": 115, "running_peak": 10,
                "tokens_per_s": rates}  # fmt: skip

    def width(index: int, beams: int, paged: Sequence[float]) -> CellResult:
        made = cell(index, {"beam_width": beams}, slabs=ran(0.1, FAST), paged=ran(0.5, paged))
        outputs = {"slabs": ["a", "b"], "paged": ["a", last]}
        arms = [arm.model_copy(update={"outputs": outputs[arm.arm]}) for arm in made.arms]
        return made.model_copy(update={"arms": arms})

    seen = findings("beam", width(0, 2, [2000, 2305, 2600]), width(1, 6, SLOW))["slabs"]
    assert "alike" in notes(seen)
    assert sides(beside(seen)[OVER + "tokens_per_s"])["6"] == 1710 / 2310
    same = beside(seen)["same_outputs"]
    assert (same.estimate, same.n) == (equal, 4)
