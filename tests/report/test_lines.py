"""Charts of lines: every value within the drawing, marks alone where nothing lies between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from full_tables import full_experiment
from pages import OpenPage

from experiment.analysis.experiment_results import Unit
from experiment.experiments.registry import EXPERIMENTS
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.values import percent, written
from experiment.report.html.lines import LineChart, line_chart, line_swatch
from experiment.report.page.experiment import experiment_charts
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message

_HEIGHT = 230


def drawn(
    *lines: Sequence[float | None],
    unit: Unit = "share",
    spans: Sequence[tuple[float, float] | None] = (),
    **more: Any,
) -> ElementTree.Element:
    """Both widths of a chart of these lines."""
    title = message("metric.waste")
    chart = LineChart(
        name="test", table="test-data", title=title, about=title, axis=title,
        points=[str(n) for n in range(len(lines[0]))], lines=lines, unit=unit,
        spans=[spans] if spans else (), **more,
    )  # fmt: skip
    return ElementTree.fromstring(f"<div>{line_chart(Bilingual('en'), chart)}</div>")


def wide(chart: ElementTree.Element) -> ElementTree.Element:
    return next(node for node in chart if "wide" in (node.get("class") or ""))


def heights(chart: ElementTree.Element) -> list[float]:
    """Of all marks and strokes of the series, in both widths."""
    places = [node.get("transform") or "" for node in chart.iter("path")]
    marks = [float(found[1]) for p in places if (found := re.match(r"translate\(\S+ (\S+)\)", p))]
    strokes = [n for n in chart.iter("line") if "series" in (n.get("class") or "")]
    return marks + [float(one.get(end)) for one in strokes for end in ("y1", "y2")]


@pytest.mark.parametrize(
    ("values", "span"),
    [
        ([0.03, 2.4], (0.09, 4.86)),  # a share of more than the whole
        ([-0.02, 0.03], (-0.3, 0.05)),  # less than nothing: noise around it
        ([-0.3, -0.1], (-0.4, -0.1)),
        ([0.0, 0.0], (0.0, 0.0)),
    ],
)
def test_no_value_leaves_the_drawing(values: list[float | None], span: tuple[float, float]) -> None:
    seen = heights(drawn(values, spans=[None, span]))
    assert len(seen) == 8
    assert min(seen) >= 0
    assert max(seen) <= _HEIGHT


def test_numbers_below_nothing_stand_on_the_axis() -> None:
    said = {"".join(node.itertext()) for node in drawn([-0.2, 0.3]).iter("text")}
    assert {"-20 %", "0 %", "20 %"} <= said


def test_the_axis_ends_with_a_number_above_the_data() -> None:
    said = {"".join(node.itertext()) for node in drawn([0.144, 0.026], unit="seconds").iter("text")}
    assert {"50 ms", "100 ms", "150 ms"} <= said
    assert "200 ms" not in said


def test_equal_values_of_words_stand_side_by_side_within_their_column() -> None:
    chart = wide(drawn([1.0, 2.0], [None, None], [1.0, 3.0], unit="mean", joined=False))
    marks = [node.get("transform") or "" for node in chart.iter("path")]
    places = [float(at[1]) for place in marks if (at := re.match(r"translate\((\S+) ", place))]
    first, second = places[:2], places[2:]
    assert all(abs(a - b) >= 10 for a, b in zip(first, second, strict=True))
    middle = (max(places) + min(places)) / 2
    assert max(first[0], second[0]) < middle < min(first[1], second[1])


@pytest.mark.parametrize("joined", [True, False])
def test_words_are_not_joined(joined: bool) -> None:
    lines = [
        node for node in drawn([1.0, 2.0], joined=joined).iter("path")
        if "series" in (node.get("class") or "")
    ]  # fmt: skip
    assert bool(lines) is joined


def test_the_line_on_top_is_last_dashed_and_open_so_that_an_equal_one_is_seen() -> None:
    chart = wide(drawn([1.0, 2.0], [1.0, 2.0], unit="mean", top=0))
    marks = [node for node in chart.iter("path") if node.get("class")]
    assert [node.get("class") for node in marks] == [
        "series s1", "point s1", "point s1", "series over s0", "point open s0", "point open s0",
    ]  # fmt: skip
    assert ["scale" in (node.get("transform") or "") for node in marks] == [False] * 4 + [True] * 2
    # The legend shows it as it is drawn.
    assert 'class="point open s0"' in line_swatch(0, on_top=True)
    assert "open" not in line_swatch(0)


def test_large_shares_are_written_as_other_large_numbers_are() -> None:
    assert written(14.08, "share") == percent(14.08) == "1,408.0 %"
    assert Translator("en")("claims.figure_share", value=14.08) == "1,408.0 %"
    assert "2,000 %" in {"".join(n.itertext()) for n in drawn([3.0, 20.0]).iter("text")}


CSS = (resources.files("experiment.report") / "templates/report.css").read_text("utf-8")
# Texts of a drawing that leave it, and pairs of them that lie on each other. A letter's box is
# higher than the letter: a pixel of it may lie on another one.
LOST = """svg => {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].filter(one => one.getClientRects().length);
  const boxes = texts.map(one => [one.textContent, one.getBoundingClientRect()]);
  const out = boxes.filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1
    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1).map(([said]) => said);
  const over = [];
  boxes.forEach(([one, a], at) => boxes.slice(at + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 2) over.push(`${one} | ${other}`);
  }));
  return [boxes.length, out, over];
}"""
# Of each section: what it is of, and what is lost in each of its drawings that are shown.
CHARTS = f"""sections => sections.map(section => [section.dataset.of,
  [...section.querySelectorAll('svg.chart')].filter(n => n.getClientRects().length).map({LOST})])"""


@pytest.fixture(scope="module")
def all_charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the charts of every experiment in both sizes."""
    made = ((name, size) for name in EXPERIMENTS for size in ("full", "quick"))
    parts = []
    for name, size in made:
        charts = experiment_charts(Bilingual("en"), full_experiment(name, size))
        assert charts
        parts.append(f'<section data-of="{name} {size}">{"".join(charts.values())}</section>')
    file = tmp_path_factory.mktemp("charts") / "charts.html"
    file.write_text(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Charts</title>
        <meta name="viewport" content="width=device-width"><style>{CSS}</style>
        <main>{"".join(parts)}</main></html>""",
        encoding="utf-8",
    )
    return file


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_lie_within_their_chart_and_not_on_each_other(
    open_page: OpenPage, all_charts: Path, width: int
) -> None:
    one = open_page(all_charts, viewport={"width": width, "height": 844})
    for lang in LANGUAGES:
        one.page.evaluate("lang => document.documentElement.lang = lang", lang)
        seen = one.page.eval_on_selector_all("section", CHARTS)
        assert len(seen) == 2 * len(EXPERIMENTS)
        for of, charts in seen:
            assert charts, of
            for texts, out, over in charts:
                assert texts > 4, of
                assert (out, over) == ([], []), (of, lang)
