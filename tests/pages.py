"""A page in a real browser, opened from its file, with the network watched."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


class Opened:
    """A page, what it complained about and what it asked the network for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())


# Opens a file; the page is closed as the test ends, and must not have complained.
OpenPage = Callable[..., Opened]


def wide_tables(page: Any) -> list[str]:
    """Names of what must be scrolled sideways to be read, unfolded tables apart."""
    found: list[str] = page.eval_on_selector_all(
        ".scroll",
        "nodes => nodes.filter(n => !n.closest('details') && n.scrollWidth > n.clientWidth)"
        ".map(n => n.getAttribute('aria-labelledby'))",
    )
    return found


def until(page: Any, condition: str, seconds: float = 20) -> None:
    """Wait for a condition in the page; its content policy forbids playwright's own way."""
    for _ in range(int(seconds * 20)):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}")
