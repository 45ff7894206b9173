"""What is said where repeats are too few for times: counts decide, or it is called chance."""

from __future__ import annotations

import pytest
from made_up import Figures, beside, budget, cell, findings, sides, why

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
    told = beside(seen).get("steps")
    assert (sides(told) if told else None) == (
        None if len(rates) > 2 else {"paged": steps, "slabs": 100}
    )
