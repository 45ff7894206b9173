"""The smallest blocks are held against every other size; a single one may be the odd one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from made_up import Figures, beside, cell, findings, sides, why

from experiment.analysis.experiment_results import CellResult

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


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [([0, 0, 0.05, 0.05, 0.3], "shown"), ([0, 0.1, 0.05, 0.3], "not_shown"),
     ([0.1, 0.1], "not_shown")],
)  # fmt: skip
def test_waste_that_stays_from_one_size_to_the_next_is_not_said_to_grow_there(
    shares: list[float], verdict: str
) -> None:
    """Few requests may leave as much in blocks of either size."""
    made = [cell(n, {"block_size": 2**n}, paged={"waste": share}) for n, share in enumerate(shares)]
    seen = findings("block-size", *made)["waste"]
    assert (seen.verdict, why(seen)) == (verdict, None if verdict == "shown" else "sizes")
    assert list(sides(seen).values()) == shares
