"""Chart of an arm compared with the simulator: allocated blocks by step."""

from __future__ import annotations

from functools import partial

from markupsafe import Markup

from experiment.analysis.results import ArmResult, SimulatorCheck
from experiment.report.facts.bilingual import Bilingual
from experiment.report.html.charts import Width, both_widths, evenly, grid, stairs, x_axis
from experiment.report.html.svg import Scale, binary_ticks, drawing, path
from experiment.text.messages import arm_message, message

_HEIGHT = 180
_MAX_ROWS = 24
# Names of the lines, in the order of the legend.
LINES = ("simulator.recorded", "simulator.simulated")


def check_chart(b: Bilingual, arm: ArmResult) -> Markup | None:
    """Both lines over all steps; None if blocks were not compared."""
    check = arm.simulator
    if check is None or not check.curve or not check.usable_blocks:
        return None
    return both_widths(partial(_chart, b, arm.arm, check))


def check_rows(arm: ArmResult) -> list[int]:
    """Indices of the curve for the table."""
    return evenly(len(arm.simulator.curve) if arm.simulator else 0, _MAX_ROWS)


def _chart(b: Bilingual, arm: str, check: SimulatorCheck, width: Width) -> Markup:
    left, right = (50, 8) if width.narrow else (64, 20)
    steps = [step for step, _, _ in check.curve]
    x = Scale(steps[-1] + 1, left, width.pixels - right)
    y = Scale(check.usable_blocks or 1, _HEIGHT, 12)
    parts = grid(b, x, y, ((tick, f"{tick:,}") for tick in binary_ticks(y.top, 4)))
    edges = [float(edge) for edge in (*steps, steps[-1] + 1)]
    for index in range(len(LINES)):
        corners = stairs(edges, [float(row[index + 1]) for row in check.curve])
        # The second line is dashed, so that an equal first line is visible.
        style = f"series s{index}" + (" over" if index else "")
        parts.append(path([(x(px), y(py)) for px, py in corners], class_=style))
    parts += x_axis(b, x, _HEIGHT, message("simulator.chart.steps"))
    return drawing(
        b, f"simulator-{arm}-{width.name}", (width.pixels, _HEIGHT + 48),
        message("simulator.chart.title", arm=arm_message(arm).model_dump()),
        message("simulator.chart.desc"), parts, table=f"simulator-{arm}-data",
        class_=f"chart {width.name}",
    )  # fmt: skip
