"""What a page tells of its charts to people who do not see them.

Every ``<svg>`` is one of three: an image with its name, its description and a table of its data; a
sign inside a button; or an ornament of these classes, beside words that say the same.
"""

from __future__ import annotations

from typing import Any

from data_keys import name

from experiment.text import LANGUAGES

ORNAMENTS = {"arrows", "bytes", "definitions", "strip-curve", "swatch", "ticks"}


def charts_of(body: Any) -> list[Any]:
    """All drawings of a page but ornaments and signs on buttons."""
    signs = {id(svg) for button in body.iter("button") for svg in button.iter()}
    drawn = [node for node in body.iter() if name(node) == "svg" and id(node) not in signs]
    return [node for node in drawn if not ORNAMENTS & set((node.get("class") or "").split())]


def untold(body: Any) -> list[str]:
    """What is missing, chart by chart."""
    by_id = {node.get("id"): node for node in body.iter() if node.get("id")}
    missing = []
    for chart in charts_of(body):
        label = chart.get("id") or chart.get("class") or "no name"
        if chart.get("role") != "img" or chart.get("aria-hidden"):
            missing.append(f"{label}: is no image")
        for part in ("title", "desc"):
            said = {c.get("lang"): "".join(c.itertext()).strip() for c in chart if name(c) == part}
            missing += [f"{label}: {part} in {lang}" for lang in LANGUAGES if not said.get(lang)]
        if not _figures(by_id.get(chart.get("aria-details"))):
            missing.append(f"{label}: table")
    return missing


def _figures(node: Any) -> int:
    """How many cells with words in them a table has."""
    if node is None or not (name(node) == "tbody" or node.find(".//table") is not None):
        return 0
    return sum(bool("".join(cell.itertext()).strip()) for cell in node.iter("td"))
