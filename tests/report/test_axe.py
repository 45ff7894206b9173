"""axe-core finds no serious violation on any of the pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_check import WAYS, needs_axe, violations
from test_tables_page import page_of, side

from experiment.compare.checks import write_comparison
from experiment.compare.sides import compare_sides
from experiment.report.index import index_html
from experiment.report.index_entries import Entry
from kvsim.paper.memory import closed

pytestmark = needs_axe


def index_page(_: Path, lang: str) -> str:
    from experiment.messages import message

    verdict = message("paper.count", holds=len(closed()), fails=0, not_judged=1)
    kinds = ("run", "compare", "paper", "unreadable")
    return index_html(
        [Entry(kind, kind, 10**18, 0, verdict, "failed", "gpt2") for kind in kinds],  # type: ignore[arg-type]
        lang,
    )


def compare_page(scratch: Path, lang: str) -> str:
    write_comparison(scratch / "compare", compare_sides(side(1), side(3)), lang)
    return (scratch / "compare" / "compare.html").read_text(encoding="utf-8")


PAGES: dict[str, Callable[[Path, str], str]] = {
    "index": index_page,
    "compare": compare_page,
    "claims": lambda _, lang: page_of("claims", lang),
    "paper": lambda _, lang: page_of("paper", lang),
    "bench": lambda _, lang: page_of("bench", lang),
    "sweep": lambda _, lang: page_of("sweep", lang),
}


@pytest.mark.parametrize(("scheme", "lang", "width"), WAYS)
def test_axe_finds_nothing_on_the_page_of_a_run(
    browser: Any, report: Path, scheme: str, lang: str, width: int
) -> None:
    assert not violations(browser, report / "report.html", scheme, lang, width)


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(("scheme", "lang", "width"), WAYS)
def test_axe_finds_nothing_on_any_other_page(
    browser: Any, tmp_path: Path, kind: str, scheme: str, lang: str, width: int
) -> None:
    file = tmp_path / f"{kind}.html"
    file.write_text(PAGES[kind](tmp_path, "en"), encoding="utf-8")
    assert not violations(browser, file, scheme, lang, width)
