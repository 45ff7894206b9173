"""Charts over the cells of every shipped experiment, as a telephone and a desk show them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from full_tables import full_experiment
from pages import Opened

from experiment.experiments.registry import EXPERIMENTS
from experiment.report.facts.bilingual import Bilingual
from experiment.report.page.experiment import experiment_context
from experiment.text import LANGUAGES

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


def page_of(name: str, size: str) -> str:
    charts = experiment_context(Bilingual("en"), full_experiment(name, size))["experiment_charts"]
    assert charts
    drawn = "".join(f"<figure>{chart.picture}</figure>" for chart in charts)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>
    <meta name="viewport" content="width=device-width"><style>{CSS}</style>
    <main><section>{drawn}</section></main></html>"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("size", ["full", "quick"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_labels_lie_within_their_chart_and_not_on_each_other(
    browser: Any, tmp_path: Path, name: str, size: str, width: int
) -> None:
    file = tmp_path / "charts.html"
    file.write_text(page_of(name, size), encoding="utf-8")
    one = Opened(browser, file, viewport={"width": width, "height": 844})
    for lang in LANGUAGES:
        one.page.evaluate("lang => document.documentElement.lang = lang", lang)
        seen = one.page.eval_on_selector_all(
            "svg.chart", f"nodes => nodes.filter(n => n.getClientRects().length).map({LOST})"
        )
        assert seen
        for texts, out, over in seen:
            assert texts > 4
            assert (out, over) == ([], []), lang
    one.context.close()
