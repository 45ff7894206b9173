"""The pictures of the READMEs: what a report says first, as a browser draws it.

python tests/report/pictures.py docs/sample/report.html docs/pictures/report
"""

from __future__ import annotations

import sys
from pathlib import Path

from pages import CHROMIUM, FLAGS
from playwright.sync_api import Browser, sync_playwright

SIZE = {"width": 1060, "height": 900}
MARGIN = 4
LANGUAGES = ("en", "zh")


def main(report: Path, stem: Path) -> None:
    """Write STEM-LANG.png for each language."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for lang in LANGUAGES:
            shoot(browser, report, stem.with_name(f"{stem.name}-{lang}.png"), lang)
        browser.close()


def shoot(browser: Browser, report: Path, file: Path, lang: str) -> None:
    """One picture, in the light theme and as wide as a README is shown."""
    page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
    page.goto(f"{report.resolve().as_uri()}?lang={lang}&theme=light")
    after = page.locator("main :is(.conditions, #figures-0) >> visible=true").first.bounding_box()
    assert after is not None
    height = min(after["y"] - MARGIN, SIZE["height"])
    page.screenshot(path=file, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": height})
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
