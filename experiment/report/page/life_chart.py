"""Timeline of requests: a row each, coloured by phase; all arms on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.lifelines import Lifeline, Lifelines
from experiment.report.html.charts import Width, both_widths, x_axis
from experiment.report.html.svg import Scale, drawing, fill, rect, text
from experiment.text.messages import arm_message, message

MAX_LINES = 40
_FEW = 12
_BEFORE, _SIGN = 12, 7.5  # pixels next to the label of a row, and of each digit


def life_chart(b: Bilingual, arms: Sequence[Lifelines]) -> Markup:
    """Chart of each arm's requests, limited to the first ones."""
    return both_widths(lambda width: _chart(b, arms, width))


def _chart(b: Bilingual, arms: Sequence[Lifelines], width: Width) -> Markup:
    longest = max((len(str(line.request)) for one in arms for line in one.lines), default=1)
    left = max(30, _BEFORE + _SIGN * longest)
    x = Scale(max((one.end for one in arms), default=1.0), left, width.pixels - 6)
    parts: list[Markup] = []
    y = 14.0
    for one in arms:
        parts.append(text(b, 0, y, arm_message(one.arm), class_="t strong"))
        y += 10
        shown = one.lines[:MAX_LINES]
        height = 13 if len(shown) <= _FEW else 8
        for place, life in enumerate(shown):
            if height > 12 or place % 5 == 0:
                label, style = str(life.request), "t small end soft num"
                parts.append(text(b, left - 8, y + height - 3, label, class_=style))
            parts += _row(life, x, y, height)
            y += height
        if len(one.lines) > len(shown):
            note = message("chart.life.hidden", n=len(one.lines) - len(shown))
            parts.append(text(b, left, y + 14, note, class_="t small soft"))
            y += 16
        y += 22
    parts += x_axis(b, x, y - 18, message("chart.life.axis"))
    return drawing(
        b, f"life-{width.name}", (width.pixels, y + 26), message("chart.life.title"),
        message("chart.life.desc"), parts, table="life-data", class_=f"chart {width.name}",
    )  # fmt: skip


def _row(life: Lifeline, x: Scale, y: float, height: int) -> list[Markup]:
    """A request; each phase is at least a pixel wide."""
    return [
        rect(
            x(span.start), y + 1, max(x(span.end) - x(span.start), 1.0), height - 2,
            fill=fill(span.phase), class_="edge" if span.phase == "queued" else None,
        )
        for span in life.spans
        if span.phase != "queued" or x(span.end) - x(span.start) >= 1
    ]  # fmt: skip
