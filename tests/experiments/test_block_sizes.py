"""The smallest blocks are held against every other size; a single one may be the odd one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from made_up import Figures, begun_busy, below, cell, findings

from experiment.analysis.experiment_results import CellResult
from experiment.text import Translator

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
    ("times", "verdict", "said"),
    [
        (
            {1: MIDDLE, 16: SLOW, 64: FAST, 256: FAST},
            "not_shown",
            "longer than in blocks of 64, 256, and clearly less time than in blocks of 16.",
        ),
        ({1: MIDDLE, 16: FAST, 64: FAST}, "shown", "clearly longer than in blocks of 16, 64."),
        ({1: MIDDLE, 16: WIDE, 64: FAST, 256: FAST}, "shown", "longer than in blocks of 64, 256."),
        # Half of them are not most.
        ({1: MIDDLE, 16: WIDE, 64: FAST}, "not_shown", "clearly longer than in blocks of 64."),
        ({4: FAST, 64: SLOW}, "not_shown", "takes clearly less time than in blocks of 64."),
        ({4: WIDE, 64: MIDDLE}, "not_shown", "neither clearly longer nor clearly less time"),
    ],
)
def test_the_smallest_blocks_are_held_against_each_size(
    times: Mapping[int, Sequence[float]], verdict: str, said: str
) -> None:
    seen = findings("block-size", *cells(times))["speed"]
    assert seen.verdict == verdict
    assert said in Translator("en").message(seen.text)
    factors = Translator("en").message(seen.whole)
    assert all(f"times as long as in blocks of {size} (" in factors for size in [*times][1:])


def test_the_slowest_size_is_named_and_what_the_usual_one_costs() -> None:
    seen = findings("block-size", *cells({1: MIDDLE, 16: SLOW, 64: FAST}))["speed"]
    ends, usual = (below(seen)[f"block_size.speed_{name}"] for name in ("ends", "usual"))
    assert (ends["slowest"], ends["fastest"], ends["note"]) == (16, 64, "")
    assert (usual["usual"], usual["best"]) == (16, 64)
    assert usual["factor"] == pytest.approx(1.26 / 1.95)
    best = findings("block-size", *cells({1: SLOW, 16: FAST}))["speed"]
    assert "block_size.speed_usual" not in below(best)


def test_a_size_that_ran_on_a_busy_machine_decides_nothing() -> None:
    smallest, usual, large = cells({1: MIDDLE, 16: SLOW, 64: FAST})
    seen = findings("block-size", smallest, begun_busy(usual, "paged"), large)["speed"]
    # Beside the quiet ones it is slower; that the busy one is faster is not said.
    assert seen.verdict == "shown"
    text = Translator("en").message(seen.whole)
    assert "as in blocks of 16 (repeats: 0.81 to 0.88, where other programs were busy)" in text
    seen = findings("block-size", begun_busy(smallest, "paged"), usual, large)["speed"]
    assert (seen.verdict, seen.text.key) == ("untested", "experiments.busy")


@pytest.mark.parametrize(("large", "named"), [([1.0, 1.1, 1.2], True), ([1.9, 2.2, 2.3], False)])
def test_the_slowest_size_is_named_only_where_repeats_tell_it_from_the_fastest(
    large: list[float], named: bool
) -> None:
    cells = [
        cell(index, {"block_size": size}, paged={"step_s": steps}).model_copy(
            update={"block_size": size}
        )
        for index, (size, steps) in enumerate([(1, [2.0, 2.1, 2.2]), (16, large)])
    ]
    seen = findings("block-size", *cells)["speed"]
    assert seen.verdict == ("shown" if named else "not_shown")
    assert ("block_size.speed_ends" in below(seen)) is named


@pytest.mark.parametrize(
    ("shares", "verdict", "said"),
    [
        ([0, 0, 0.05, 0.05, 0.3], "shown", "never falls from one size to the next, and grows"),
        ([0, 0.1, 0.05, 0.3], "not_shown", "waste falls at some size or never grows"),
        ([0.1, 0.1], "not_shown", "waste falls at some size or never grows"),
    ],
)
def test_waste_that_stays_from_one_size_to_the_next_is_not_said_to_grow_there(
    shares: list[float], verdict: str, said: str
) -> None:
    """Few requests may leave as much in blocks of either size."""
    made = [
        cell(n, {"block_size": 2**n}, paged={"waste": share}).model_copy(
            update={"block_size": 2**n}
        )
        for n, share in enumerate(shares)
    ]
    seen = findings("block-size", *made)["waste"]
    assert seen.verdict == verdict
    assert said in Translator("en").message(seen.text)
