"""Tables with an arm a column fit every console, and tear no word or figure apart."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text
from sample import make_record

from experiment.conclusions import evaluate
from experiment.i18n import LANGUAGES, Translator
from experiment.report.arm_tables import Line, show_arms
from experiment.report.console import ConsoleReporter
from experiment.report.console_results import show_results
from experiment.report.texts import arm_name

ARMS = (
    "contiguous.sequential", "contiguous.batch", "contiguous.growing", "slabs", "paged", "vllm",
    "transformers_paged",
)  # fmt: skip
FIGURES = [f"{120 + index}.{index} MiB\n({1000 + index:,})" for index in range(len(ARMS))]


def reporter(
    lang: str, width: int, ascii_only: bool = False
) -> tuple[ConsoleReporter, io.StringIO]:
    out, text = ConsoleReporter(lang, ascii_only), io.StringIO()
    out.console = Console(file=text, width=width)
    return out, text


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_seven_arms_fit_and_nothing_is_torn_apart(lang: str, width: int, ascii_only: bool) -> None:
    out, text = reporter(lang, width, ascii_only)
    label = Translator(lang)("report.compare.mean_share")
    lines = [Line(Text("heading")), Line(Text(label), [Text(each) for each in FIGURES])]
    show_arms(out, "what", ARMS, lines)
    shown = text.getvalue()
    assert max(map(cell_len, shown.splitlines())) <= width
    for figure in FIGURES:
        assert all(part in shown for part in figure.split("\n"))
    for arm in ARMS:
        for word in re.split(r" |(?=（)", arm_name(out.t, arm)):
            assert word in shown, word
    assert (shown.count("heading") > 1) == (width < 200)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("width", [40, 80])
def test_the_tables_of_a_run_fit(tmp_path: Path, lang: str, width: int) -> None:
    results = evaluate(make_record(tmp_path))
    out, text = reporter(lang, width)
    show_results(out, results, [])
    assert max(map(cell_len, text.getvalue().splitlines())) <= width
    for arm in results.arms:
        if arm.peak:
            assert f"({arm.peak.reserved:,.0f})" in text.getvalue()
