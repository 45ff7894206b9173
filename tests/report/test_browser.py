"""The page in a real browser, from a file, as people open it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from pages import Opened, OpenPage, wide_tables
from test_html import HAN, SENTENCE

from experiment.text import LANGUAGES


@pytest.fixture
def opened(open_page: OpenPage, report: Path) -> Opened:
    return open_page(report / "report.html", color_scheme="light")


@pytest.fixture
def telephone(open_page: OpenPage, report: Path) -> Any:
    """The page on a telephone."""
    return open_page(report / "report.html", viewport={"width": 390, "height": 844}).page


def hidden(page: Any, lang: str) -> bool:
    shown = page.eval_on_selector_all(
        f'span[lang="{lang}"], svg text[lang="{lang}"]',
        "nodes => nodes.filter(node => node.getClientRects().length).length",
    )
    return int(shown) == 0


def test_it_opens_from_a_file_without_a_complaint_or_a_request(opened: Opened) -> None:
    assert len(opened.requests) == 1
    assert opened.page.locator("h1").is_visible()


def test_the_language_switch_hides_the_other_language(opened: Opened) -> None:
    page = opened.page
    assert hidden(page, "zh")
    assert not hidden(page, "en")
    page.click('[data-language="zh"]')
    assert page.evaluate("document.documentElement.lang") == "zh"
    assert hidden(page, "en")
    assert not hidden(page, "zh")
    assert page.get_attribute("#over-steps-wide", "aria-labelledby") == "over-steps-wide-title-zh"
    assert HAN.search(page.inner_text("h1"))
    page.reload()
    assert page.evaluate("document.documentElement.lang") == "zh"


def test_no_text_of_the_other_language_is_to_be_seen(opened: Opened) -> None:
    page = opened.page
    page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    # Foreign text, code and the switch of languages belong to no language.
    page.evaluate("document.querySelectorAll('bdi, pre, .switch').forEach(node => node.remove())")
    seen = {}
    for lang in LANGUAGES:
        page.evaluate("lang => document.documentElement.lang = lang", lang)
        seen[lang] = page.inner_text("body")
        assert len(seen[lang]) > 5_000
    assert not HAN.findall(seen["en"])
    assert not SENTENCE.findall(seen["zh"])


# Notes what the page looked like when its body began: the script at its end has not run by then.
FIRST = """new MutationObserver((_, observer) => {
  if (!document.body) return;
  const { lang, dataset } = document.documentElement;
  window.first = [lang, dataset.theme];
  observer.disconnect();
}).observe(document, { childList: true, subtree: true })"""


def test_what_was_chosen_is_there_before_the_first_paint(opened: Opened) -> None:
    page = opened.page
    page.click('[data-language="zh"]')
    page.click("#theme")
    page.add_init_script(FIRST)
    page.reload()
    assert page.evaluate("window.first") == ["zh", "dark"]


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_the_theme_follows_the_system_and_the_switch(open_page: OpenPage, report: Path) -> None:
    page = open_page(report / "report.html", color_scheme="light").page
    light = background(page)
    page.emulate_media(color_scheme="dark")
    dark = background(page)
    assert dark != light
    page.click("#theme")
    assert background(page) == light
    page.reload()
    assert background(page) == light
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert background(page) == dark


def contrast(page: Any, selector: str) -> float:
    script = """selector => {
      const parse = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = rgb => rgb.map(v => v / 255)
        .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const node = document.querySelector(selector);
      const style = getComputedStyle(node);
      let behind = node;
      while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') {
        behind = behind.parentElement;
      }
      const ink = node.namespaceURI.endsWith('svg') ? style.fill : style.color;
      const pair = [light(parse(ink)), light(parse(getComputedStyle(behind).backgroundColor))];
      return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    }"""
    return float(page.evaluate(script, selector))


def test_words_of_charts_are_readable_in_both_themes(opened: Opened) -> None:
    """Of all other text axe-core knows the contrast (test_axe.py)."""
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        for selector in (".chart .t", ".chart .soft"):
            assert contrast(opened.page, selector) >= 4.5, (scheme, selector)


def test_stacked_cells_of_a_telephone_name_their_arms(telephone: Any) -> None:
    for lang in LANGUAGES:
        telephone.click(f'[data-language="{lang}"]')
        heads = telephone.eval_on_selector_all(
            ".scroll[aria-labelledby=compare] thead th",
            "(nodes, lang) => nodes.map(n => n.querySelector(`span[lang=${lang}]`).textContent)",
            lang,
        )
        written = telephone.eval_on_selector_all(
            ".scroll[aria-labelledby=compare] tbody tr:first-child td",
            "nodes => nodes.map(n => getComputedStyle(n, '::before').content)",
        )
        assert len(heads) > 1
        assert written == [f'"{head}"' for head in heads]


def test_a_telephone_needs_no_sideways_scroll(telephone: Any) -> None:
    for lang in LANGUAGES:
        telephone.click(f'[data-language="{lang}"]')
        assert wide_tables(telephone) == []
    telephone.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    for lang in LANGUAGES:
        telephone.click(f'[data-language="{lang}"]')
        assert telephone.evaluate("document.documentElement.scrollWidth") <= 390
    assert telephone.locator("#over-steps-narrow").is_visible()
    assert not telephone.locator("#over-steps-wide").is_visible()


def test_no_option_is_broken_at_its_hyphens(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html")
    one.page.evaluate("document.querySelectorAll('details').forEach(node => node.open = true)")
    lines = "nodes => nodes.map(node => node.getClientRects().length)"
    for width in range(240, 480, 48):
        one.page.set_viewport_size({"width": width, "height": 800})
        assert set(one.page.eval_on_selector_all(".option", lines)) <= {0, 1}  # 0: hidden
        assert 1 in one.page.eval_on_selector_all(".option", lines)


def test_the_axis_switch_works(opened: Opened) -> None:
    page = opened.page
    assert page.locator("#over-steps-wide").is_visible()
    page.click('label[for="axis-time"]')
    assert page.locator("#over-time-wide").is_visible()
    assert not page.locator("#over-steps-wide").is_visible()


def test_data_can_be_downloaded(opened: Opened, report: Path, tmp_path: Path) -> None:
    names = opened.page.locator("#downloads button").all_inner_texts()
    assert set(names) == {"run.json", "summary.csv", "timeline.csv", "readings.csv"}
    with opened.page.expect_download() as waiting:
        opened.page.get_by_role("button", name="summary.csv").click()
    waiting.value.save_as(tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_bytes() == (report / "summary.csv").read_bytes()


def test_without_script_it_shows_the_language_of_the_run(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html", java_script_enabled=False)
    assert one.page.locator("h1").is_visible()
    assert not one.page.locator("h1 span[lang=zh]").is_visible()
    assert not one.page.locator(".controls").is_visible()


def test_six_arms_stand_side_by_side_on_a_screen(open_page: OpenPage, tmp_path: Path) -> None:
    """What is cut at the edge of its box is not seen to go on."""
    style = (files("experiment.report") / "templates/report.css").read_text(encoding="utf-8")
    names = "".join(f"<th>Transformers arm {arm}</th>" for arm in range(6))
    values = "<td>1,024.00 tokens</td>" * 6
    table = f"<thead><tr><th>Arm</th>{names}</tr></thead><tr><th>Row</th>{values}</tr>"
    page = tmp_path / "page.html"
    page.write_text(
        f'<!doctype html><style>{style}</style><main><div class="scroll" aria-labelledby="six">'
        f'<table class="compare" data-arms="6">{table}</table></div></main>',
        encoding="utf-8",
    )
    one = open_page(page)
    for width in (1000, 1280, 1920):
        one.page.set_viewport_size({"width": width, "height": 800})
        assert wide_tables(one.page) == [], width
