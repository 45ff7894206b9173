"""On a telephone no page must be scrolled sideways, nor any table that is not folded away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import Opened, wide_tables
from sample import make_record
from test_axe import PAGES

from experiment.analysis.conclusions import evaluate
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator

TITLES = {kind: f"{kind}.title" for kind in PAGES} | {"sweep": "sweep.name"}
TELEPHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_is_as_wide_as_a_telephone(browser: Any, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES[kind](tmp_path, "en"), encoding="utf-8")
    one = Opened(browser, file, viewport=TELEPHONE)
    for lang in LANGUAGES:
        one.page.click(f'[data-language="{lang}"]')
        assert one.page.title().startswith(Translator(lang)(TITLES[kind]))
        assert one.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert wide_tables(one.page) == []
    assert one.complaints == []
    one.context.close()


def test_a_run_of_one_arm_has_one_pool(browser: Any, tmp_path: Path) -> None:
    record = make_record(tmp_path, arms=("paged",))
    file = tmp_path / "report.html"
    file.write_text(report_html(record, evaluate(record), "en"), encoding="utf-8")
    one = Opened(browser, file, viewport=TELEPHONE)
    assert one.page.locator(".side").count() == 1
    one.page.click("#player-first")
    one.page.click("#player-on")
    (counted,) = one.page.evaluate("pagedkv.player.counters()")
    assert (counted["arm"], counted["step"]) == ("paged", 0)
    one.page.click('label[for="player-by-time"]')
    assert one.page.evaluate("pagedkv.player.counters().length") == 1
    assert one.complaints == []
    one.context.close()
