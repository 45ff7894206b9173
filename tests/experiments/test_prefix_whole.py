"""What a prefix cache does to the run as a whole, and what it costs the first question itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Figures, beside, cell, findings, sides, why

from experiment.analysis.experiment_results import CellResult

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


@pytest.mark.parametrize(
    ("off", "verdict", "reason"),
    [
        ([0.0628, 0.0898, 0.0997], "not_shown", "overlap"),
        ([0.15, 0.16, 0.17], "shown", None),
        ([0.05, 0.051, 0.052], "not_shown", "opposite"),
    ],
)
def test_later_questions_are_not_the_whole_run(
    off: Sequence[float], verdict: str, reason: str | None
) -> None:
    seen = findings("prefix", *pair(off))["whole"]
    assert (seen.verdict, why(seen)) == (verdict, reason)
    assert sides(seen) == {"off": off[1], "on": 0.0933}


@pytest.mark.parametrize(
    ("off", "reason", "longer"),
    [([6.7, 6.8, 6.9], None, True), ([6.0, 6.73, 8.1], "overlap", True),
     ([9.0, 9.1, 9.2], None, False)],
)  # fmt: skip
def test_the_first_question_is_held_against_the_first_without_the_cache(
    off: Sequence[float], reason: str | None, longer: bool
) -> None:
    seen = findings("prefix", *pair(first=off))["first"]
    assert sides(seen) == {"first_ttft_s": 7.95, "later_ttft_s": 2.5}
    added = beside(seen)["first_ttft_s"]
    assert (why(added), (added.estimate or 0) > 1) == (reason, longer)
