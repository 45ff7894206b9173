"""Pictures of a report in both languages and themes, on a screen, a telephone and paper.

python tests/report/screenshots.py shots/ reports/<run>/report.html reports/index.html ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from pages import CHROMIUM, FLAGS
from playwright.sync_api import Browser, sync_playwright

LANGUAGES = ("en", "zh")
WIDTHS = {"screen": 1300, "telephone": 390}


def main(out: Path, pages: Sequence[Path]) -> None:
    """Write PNG files and an A4 PDF for each language and page."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for page, lang in product(pages, LANGUAGES):
            stem = f"{page.parent.name}-{page.stem}"
            for theme, (name, width) in product(("light", "dark"), WIDTHS.items()):
                _shoot(browser, page, out / f"{stem}-{name}-{lang}-{theme}.png", lang, theme, width)
            _print(browser, page, out / f"{stem}-paper-{lang}.pdf", lang)
        browser.close()


def _shoot(browser: Browser, file: Path, shot: Path, lang: str, theme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{file.resolve().as_uri()}?lang={lang}&theme={theme}")
    page.screenshot(path=shot, full_page=True)
    page.close()


def _print(browser: Browser, file: Path, shot: Path, lang: str) -> None:
    page = browser.new_page()
    page.goto(f"{file.resolve().as_uri()}?lang={lang}")
    page.pdf(path=shot, format="A4", print_background=True)
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
