"""Pictures of a report in both languages and themes, on a screen, a telephone and paper.

python tests/report/screenshots.py reports/<run> shots/
"""

from __future__ import annotations

import sys
from pathlib import Path

from pages import CHROMIUM, FLAGS
from playwright.sync_api import Browser, sync_playwright

WIDTHS = {"screen": 1300, "telephone": 390}


def main(run: Path, out: Path) -> None:
    """Write PNG files and an A4 PDF for each language."""
    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for lang in ("en", "zh"):
            for theme in ("light", "dark"):
                for name, width in WIDTHS.items():
                    _shoot(browser, run, out / f"{name}-{lang}-{theme}.png", lang, theme, width)
            _print(browser, run, out / f"paper-{lang}.pdf", lang)
        browser.close()


def _shoot(browser: Browser, run: Path, file: Path, lang: str, theme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{(run / 'report.html').resolve().as_uri()}?lang={lang}&theme={theme}")
    page.screenshot(path=file, full_page=True)
    page.close()


def _print(browser: Browser, run: Path, file: Path, lang: str) -> None:
    page = browser.new_page()
    page.goto(f"{(run / 'report.html').resolve().as_uri()}?lang={lang}")
    page.pdf(path=file, format="A4", print_background=True)
    page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
