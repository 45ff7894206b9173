"""Times that are told of a fixed span: a slower process stretches them, whatever their unit."""

from __future__ import annotations

import pytest
from compare_runs import figure, side

from experiment.compare.sides import compare_sides
from experiment.experiments.figures import FIGURES


@pytest.mark.parametrize(
    ("name", "times", "verdict"),
    [
        ("slowest", 1.15, "unclear"),
        ("slowest", 1.25, "worse"),
        # The rest is from 1 to 1.3, and all with the arrivals, which is stretched, from 2 to 2.3.
        ("rest", 1.3, "unclear"),
        ("rest", 1.5, "worse"),
        ("later_tokens", 1.15, "differs"),  # seconds over seconds of the same process
        ("kept_up", 0.85, "differs"),
    ],
)
def test_what_is_told_of_a_fixed_span_is_stretched_by_a_slow_process_too(
    name: str, times: float, verdict: str
) -> None:
    """Seconds over those of all arrivals, which come as they were asked to on either side."""
    about = FIGURES[name].about
    left, right = (
        side(figure(name, *seen, unit=about.unit, kind=about.kind, better=about.better))
        for seen in ((0.99, 1.0, 1.01), (0.99 * times, times, 1.01 * times))
    )
    (row,) = compare_sides(left, right).rows
    assert row.verdict == verdict
