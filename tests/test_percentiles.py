"""A percentile takes so many values that one lies above it; of fewer it is unknown."""

from __future__ import annotations

import pytest

from experiment.analysis.percentiles import is_enough, percentile


@pytest.mark.parametrize(("percent", "least"), [(50, 2), (90, 10), (95, 20), (99, 100), (100, 1)])
def test_of_too_few_values_none_is_given(percent: int, least: int) -> None:
    assert is_enough(least, percent)
    assert not is_enough(least - 1, percent)
    assert percentile(range(1, least), percent) is None


def test_one_value_lies_above_it() -> None:
    """In any order: 19 of 20 do not exceed the 95th percentile."""
    assert percentile(range(20, 0, -1), 95) == 19
    assert percentile(range(10, 0, -1), 90) == 9
    assert percentile([3.0, 1.0, 2.0], 100) == 3.0
    assert percentile([], 100) is None
