"""What serving says of paging where times decide nothing: what was counted on the other clock."""

from __future__ import annotations

import pytest
from made_up import Figures, begun_busy, beside, cell, findings, name_of, notes, sides, why

from experiment.analysis.experiment_results import CellResult

# Requests a second, and of either arm the steps and the most at a time.
COUNTS = {8.0: ((666, 4), (666, 4)), 40.0: ((306, 4), (199, 10))}


def counted(index: int, rate: float) -> CellResult:
    slabs, paged = ({"steps": n, "running_peak": peak} for n, peak in COUNTS[rate])
    return cell(index, {"rate": rate, "clock": "steps"}, slabs=slabs, paged=paged)


def by_the_wall(index: int, rate: float, repeats: int = 3) -> CellResult:
    slow: Figures = {"latency_s": [2.0, 2.1, 2.2][:repeats]}
    fast: Figures = {"latency_s": [1.0, 1.1, 1.2][:repeats]}
    return cell(index, {"rate": rate, "clock": "wall"}, slabs=slow, paged=fast)


@pytest.mark.parametrize("reason", ["busy", "few", None])
def test_the_clock_of_steps_stands_below_times(reason: str | None) -> None:
    last = by_the_wall(3, 40.0, 2 if reason == "few" else 3)
    last = begun_busy(last, "slabs") if reason == "busy" else last
    seen = findings("serving", counted(0, 8.0), by_the_wall(1, 8.0), counted(2, 40.0), last)
    first = next(iter(seen.values()))
    assert (first.id, first.verdict) == ("paging", "untested" if reason else "shown")
    assert why(first) == reason
    steps = [sides(row) for row in first.beside if name_of(row) == "steps"]
    assert steps == [{"slabs": 666, "paged": 666}, {"slabs": 306, "paged": 199}]


# As a real run had them: latency does not tell the two apart, the first token does.
FIRST = {"slabs": ([5.5e-3, 5.7e-3, 6.1e-3], [22.8e-3, 25.7e-3, 28.7e-3]),
         "paged": ([2.8e-3, 2.9e-3, 3.0e-3], [3.6e-3, 4.0e-3, 4.5e-3])}  # fmt: skip


def with_first_tokens(index: int, rate: float, p95: bool = True, repeats: int = 3) -> CellResult:
    arms: dict[str, Figures] = {}
    for arm, (mean, late) in FIRST.items():
        figures = {"latency_s": [1.0, 1.1, 1.2][:repeats], "first_token_s": mean[:repeats]}
        arms[arm] = figures | ({"first_token_p95_s": late[:repeats]} if p95 else {})
    return cell(index, {"rate": rate, "clock": "wall"}, **arms)


def test_the_first_token_is_judged_beside_latency() -> None:
    seen = findings("serving", with_first_tokens(0, 8.0, p95=False), with_first_tokens(1, 40.0))
    assert list(seen)[:3] == ["paging", "first_token", "first_token_p95"]
    assert [seen[name].verdict for name in list(seen)[:3]] == ["not_shown", "shown", "shown"]
    assert sides(seen["first_token"]) == {"slabs": 5.7e-3, "paged": 2.9e-3}
    over = "over slabs paged first_token_s"
    assert [*sides(beside(seen["first_token"])[over])] == ["8", "40"]
    late = seen["first_token_p95"]
    assert late.estimate == pytest.approx(25.7 / 4.0)
    assert not late.beside  # one rate alone has requests enough


def test_the_first_token_heeds_what_latency_heeds() -> None:
    """Of too few requests there is no 95th percentile, and nothing is said of it."""
    few = findings("serving", with_first_tokens(0, 40.0, p95=False))
    assert few["first_token"].verdict == "shown"
    assert "first_token_p95" not in few
    names = ("first_token", "first_token_p95")
    twice = findings("serving", with_first_tokens(0, 40.0, repeats=2))
    busy = findings("serving", begun_busy(with_first_tokens(0, 40.0), "paged"))
    for seen, key in ((twice, "few"), (busy, "busy")):
        told = [(seen[name].verdict, why(seen[name])) for name in names]
        assert told == [("untested", key)] * 2
    assert findings("serving", by_the_wall(0, 8.0))["first_token"].verdict == "untested"


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
