"""The page of a simulation: valid, complete in both languages, and quiet in a real browser."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import html5lib
import pytest
from axe_check import needs_axe, violations
from chart_checks import charts_of, untold
from data_keys import assert_keys_lead, body_of
from pages import Opened, wide_tables

from experiment.record.simulation import read_simulation
from experiment.report.facts.simulation_cells import cells_of, visible_figures
from experiment.report.facts.simulation_figures import GROUPS
from experiment.report.facts.values import written
from experiment.text import LANGUAGES, Translator


def test_it_is_valid_and_holds_every_figure_in_both_languages(drawn: Path) -> None:
    page = (drawn / "report.html").read_text(encoding="utf-8")
    html5lib.HTMLParser(strict=True).parse(page)
    page = page.replace("\u00a0", " ")
    cells = cells_of(read_simulation(drawn))
    for lang in LANGUAGES:
        t = Translator(lang)
        for group in GROUPS.values():
            for figure in visible_figures(group, cells):
                assert t.message(figure.about.label) in page
                for cell in cells:
                    assert written(cell.value(figure), figure.about.unit) in page


def test_only_what_the_run_has_is_drawn(drawn: Path, hashed: Path) -> None:
    found = [
        set(re.findall(r'id="sweep-([a-z-]+)-wide"', path.read_text(encoding="utf-8")))
        for path in (drawn / "report.html", hashed / "report.html")
    ]
    assert found == [{"block-sizes", "preemption", "budgets", "samples"}, {"prefixes"}]


def test_the_ledger_paints_every_state_that_a_slot_was_in(drawn: Path) -> None:
    page = (drawn / "report.html").read_text(encoding="utf-8")
    ledger = page[page.index('id="ledger-wide"') : page.index('id="ledger-narrow"')]
    painted = set(re.findall(r'fill="(?:url\(#p-|var\(--)(\w+)', ledger))
    cells = read_simulation(drawn)["cells"]
    held = {n for c in cells for n, use in c["result"]["states"].items() if use["peak_slots"]}
    assert painted == held - {"free"}
    assert {"live", "padding", "finished", "unwritten", "rounding", "hole"} <= painted


@pytest.mark.parametrize("run", ["drawn", "hashed"])
def test_every_key_is_a_path_to_a_value_of_sim_json_and_every_chart_has_its_table(
    run: str, request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(run)
    body = body_of((directory / "report.html").read_text(encoding="utf-8"))
    assert_keys_lead(body, read_simulation(directory), least=300)
    assert untold(body) == []
    drawn = {chart.get("id") for chart in charts_of(body)}
    assert {"ledger-wide", "means-narrow", "load-wide"} < drawn


@needs_axe
def test_axe_finds_no_serious_violation(browser: Any, drawn: Path) -> None:
    assert not violations(browser, drawn / "report.html")


@pytest.mark.parametrize("run", ["drawn", "hashed"])
def test_a_browser_opens_it_without_a_complaint_or_a_request(
    run: str, browser: Any, request: pytest.FixtureRequest
) -> None:
    directory: Path = request.getfixturevalue(run)
    one = Opened(browser, directory / "report.html")
    page, widths = one.page, (1100, 390)
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        assert wide_tables(page) == []
    page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    for width, lang in product(widths, LANGUAGES):
        page.set_viewport_size({"width": width, "height": 900})
        page.click(f'[data-language="{lang}"]')
        other = "zh" if lang == "en" else "en"
        shown = page.eval_on_selector_all(
            f'span[lang="{other}"], svg text[lang="{other}"]',
            "nodes => nodes.filter(node => node.getClientRects().length).length",
        )
        assert shown == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator(f"#ledger-{'narrow' if width < 600 else 'wide'}").is_visible()
    assert one.complaints == []
    assert len(one.requests) == 1
    names = page.locator("#downloads button").all_inner_texts()
    assert {"sim.json", "summary.csv", "timeline.csv", "sweeps.csv"} == set(names)
    one.context.close()
