"""Values of figures as people read them, the same on the console and in the page."""

from __future__ import annotations

from experiment.i18n import DASH, format_bytes
from experiment.report.simulation.figures import Unit, Value


def written(value: Value, unit: Unit) -> str:
    """A value in its unit; unknown is a dash."""
    if value is None:
        return DASH
    if unit == "share":
        return f"{value * 100:.1f} %"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return seconds(value)
    if unit == "count":
        return f"{value:,.0f}"
    # Means and rates: three digits are as much as a simulation can tell.
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.{1 if abs(value) >= 100 else 2}f}"


def seconds(value: float) -> str:
    """A time: short ones in milliseconds."""
    if value < 0.1:
        return f"{value * 1000:.1f} ms" if value else "0 s"
    return f"{value:.2f} s" if value < 100 else f"{value:,.0f} s"
