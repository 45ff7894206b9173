"""What a prefix cache does to the run as a whole, and what it costs the first question itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from made_up import Figures, begun_busy, below, cell, findings

from experiment.analysis.experiment_results import CellResult
from experiment.text import Translator

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
    ("off", "verdict", "why"),
    [
        ([0.0628, 0.0898, 0.0997], "not_shown", "meet"),
        ([0.15, 0.16, 0.17], "shown", None),
        ([0.05, 0.051, 0.052], "not_shown", "opposite"),
    ],
)
def test_later_questions_are_not_the_whole_run(
    off: Sequence[float], verdict: str, why: str | None
) -> None:
    seen = findings("prefix", *pair(off))["whole"]
    assert seen.verdict == verdict
    told = seen.text.params.get("why")
    assert (told["key"] if told else None) == (why and f"experiments.why_not.{why}")
    assert "took 93.3 ms with the cache (92.6 ms to 96.1 ms)" in Translator("en").message(seen.text)


@pytest.mark.parametrize(
    ("off", "key"),
    [([6.7, 6.8, 6.9], "more"), ([6.0, 6.73, 8.1], "same"), ([9.0, 9.1, 9.2], "less")],
)
def test_the_first_question_is_held_against_the_first_without_the_cache(
    off: Sequence[float], key: str
) -> None:
    seen = findings("prefix", *pair(first=off))["first"]
    assert seen.text.key == "experiments.prefix.first_seen"  # beside later ones
    said = {name for name in below(seen) if name.startswith("prefix.first_added")}
    assert said == {f"prefix.first_added_{key}"}


def test_one_of_the_cells_on_a_busy_machine_tells_neither() -> None:
    off, on = pair()
    seen = findings("prefix", begun_busy(off, "paged"), on)
    assert (seen["whole"].verdict, seen["whole"].text.key) == ("untested", "experiments.busy")
    assert seen["first"].text.key == "experiments.prefix.first_seen"
    assert not [name for name in below(seen["first"]) if "added" in name]
