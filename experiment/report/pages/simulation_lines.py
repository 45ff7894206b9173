"""A sweep as lines over evenly spaced points: its points are mostly powers of something."""

from __future__ import annotations

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation_sweeps import Sweep
from experiment.report.facts.values import written
from experiment.report.html.lines import LineChart, line_chart, line_swatch
from experiment.text.messages import message

__all__ = ["line_swatch", "sweep_chart"]


def sweep_chart(b: Bilingual, sweep: Sweep) -> Markup:
    """All lines of a sweep in one drawing."""
    texts = f"sim.sweep.{sweep.name}"
    return line_chart(
        b,
        LineChart(
            name=f"sweep-{sweep.name.replace('_', '-')}",
            table=f"sweep-{sweep.name}-data",
            title=message(f"{texts}.title"),
            about=message(f"{texts}.about"),
            axis=message(f"{texts}.axis"),
            points=[written(point, sweep.axis_unit) for point in sweep.axis],
            lines=list(sweep.lines.values()),
            unit=sweep.unit,
            mark=sweep.axis.index(sweep.mark) if sweep.mark in sweep.axis else None,
        ),
    )
