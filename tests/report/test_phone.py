"""On a telephone no page must be scrolled sideways, nor any table that is not folded away."""

from __future__ import annotations

from pathlib import Path

from pages import OpenPage, wide_tables
from sample import BLOCK, MAX_LENGTH, make_record, write_page
from test_axe import PAGES

from experiment.record.log import Record
from experiment.text import LANGUAGES, Translator

TITLES = {kind: f"{kind}.title" for kind in PAGES} | {"sweep": "sweep.name"}
TELEPHONE = {"width": 390, "height": 844}
PHONE = {"viewport": TELEPHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}


def test_a_page_is_as_wide_as_a_telephone(open_page: OpenPage, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"{kind}.html" for kind in PAGES}
    for kind, file in files.items():
        file.write_text(PAGES[kind](tmp_path, "en"), encoding="utf-8")
    page = open_page(files["index"], viewport=TELEPHONE).page
    for kind, file in files.items():
        page.goto(file.as_uri())
        for lang in LANGUAGES:
            page.click(f'[data-language="{lang}"]')
            assert page.title().startswith(Translator(lang)(TITLES[kind]))
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, kind
            assert wide_tables(page) == [], kind


def test_a_run_of_one_arm_has_one_pool(open_page: OpenPage, tmp_path: Path) -> None:
    one = open_page(write_page(make_record(tmp_path, arms=("paged",))), viewport=TELEPHONE)
    assert one.page.locator(".side").count() == 1
    one.page.click("#player-more")
    one.page.click("#player-last")
    one.page.click("#player-first")
    (counted,) = one.page.evaluate("pagedkv.player.counters()")
    assert (counted["arm"], counted["step"]) == ("paged", 0)
    one.page.click('label[for="player-by-time"]')
    assert one.page.evaluate("pagedkv.player.counters().length") == 1


def test_both_pools_are_on_one_screen_with_one_row_of_controls(
    open_page: OpenPage, busy: Record
) -> None:
    one = open_page(busy.directory / "report.html", **PHONE)
    page = one.page
    for lang in LANGUAGES:
        page.click(f'[data-language="{lang}"]')
        page.evaluate("pagedkv.player.go(9)")
        page.evaluate(
            "document.getElementById('player-stage').scrollIntoView({behavior: 'instant'})"
        )
        deck = page.locator(".deck").bounding_box()
        assert deck["height"] < 80  # two rows would be higher
        boxes = [one.bounding_box() for one in page.locator(".pool canvas").all()]
        assert all(deck["y"] + deck["height"] <= box["y"] for box in boxes)
        assert all(box["y"] + box["height"] <= 844 and box["height"] <= 150 for box in boxes)
    assert not page.locator("#player-speed").is_visible()
    page.tap("#player-more")
    for selector in (".deck button", ".deck select", ".chip", ".axes label", ".side-arm select"):
        for node in page.locator(f"#player-stage {selector} >> visible=true").all():
            box = node.bounding_box()
            assert box["height"] >= 40, selector
            assert box["width"] >= 40, selector
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_tap_on_a_block_tells_of_it(open_page: OpenPage, report: Path) -> None:
    one = open_page(report / "report.html", **PHONE)
    page = one.page
    page.evaluate("pagedkv.player.go(9)")
    page.evaluate("document.getElementById('player-stage').scrollIntoView({behavior: 'instant'})")
    canvas = page.locator(".side:nth-child(2) canvas")
    width = canvas.bounding_box()["width"]
    for block in (0, 2):
        canvas.tap(position={"x": (block + 0.5) * width / (MAX_LENGTH // BLOCK), "y": 5})
        about = page.inner_text(".side:nth-child(2) .about-block")
        assert about.startswith(f"Block {block}: request ")
    pinned = page.evaluate("pagedkv.player.state.pinned.request")
    assert f"request {pinned}," in about
    page.locator(".side:nth-child(1) canvas").tap(position={"x": 60, "y": 5})
    assert page.inner_text(".side:nth-child(1) .about-block").startswith("Slab 0: request 0")
    assert page.locator(".side:nth-child(1) .about-block").is_visible()
