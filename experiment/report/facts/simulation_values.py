"""Values of figures as people read them, the same on the console and in the page."""

from __future__ import annotations

from experiment.report.facts.simulation_figures import Unit, Value
from experiment.text import DASH, format_bytes, format_seconds


def written(value: Value, unit: Unit) -> str:
    """A value in its unit; unknown is a dash."""
    if value is None:
        return DASH
    if unit == "share":
        # A share below one in a hundred would be left with a single digit, or with none.
        return f"{value * 100:,.{2 if 0 < abs(value) < 0.01 else 1}f} %"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "count":
        return f"{value:,.0f}"
    # Means and rates: three digits are as much as a simulation can tell.
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{1 if abs(value) >= 100 else 2}f}"
