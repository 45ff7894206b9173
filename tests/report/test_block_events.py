"""Preemptions, swaps and copies in the tables of a run: a dash where an arm cannot have any."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of
from rich.console import Console
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.record.log import Record
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import show_results
from experiment.report.files.markdown import markdown
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator

ARMS = ("contiguous.batch", "paged")


def run(directory: Path, arms: Sequence[str] = ARMS, **counts: int) -> tuple[Record, Results]:
    """A run whose paged arm counted so many."""
    record = make_record(directory, arms=arms)
    results = evaluate(record)
    found = [arm.model_copy(update=counts) if arm.arm == "paged" else arm for arm in results.arms]
    return record, results.model_copy(update={"arms": found})


def row(body: Any, label: str) -> list[str]:
    """The cells behind a label of a table, in English."""
    heads = [node for node in body.iter("tr") if english(node.find("th")) == label]
    return [english(cell) for cell in heads[0].iter("td")]


def english(node: Any) -> str:
    """What a reader of English sees of a part of the page."""
    if node is None or node.get("lang") == "zh":
        return ""
    inner = [(node.text or "")] + [english(child) + (child.tail or "") for child in node]
    return " ".join("".join(inner).split())


def test_only_an_arm_with_blocks_has_a_count_of_what_happens_to_them(tmp_path: Path) -> None:
    record, results = run(tmp_path, preemptions=3, copied_blocks=0)
    body = body_of(report_html(record, results, "en"))
    assert row(body, "Preemptions") == ["— has no blocks", "3"]
    assert "Blocks copied on write" not in [english(node) for node in body.iter("th")]
    record, results = run(tmp_path / "b", (*ARMS, "failed", "skipped"), copied_blocks=2)
    cells = row(body_of(report_html(record, results, "en")), "Blocks copied on write")
    # By the ladder of arms, however late they came.
    assert cells == ["— the arm failed first", "— has no blocks", "— the arm was skipped", "2"]


def test_a_request_without_blocks_was_preempted_not_even_never(tmp_path: Path) -> None:
    body = body_of(report_html(*run(tmp_path), "en"))
    (table,) = [node for node in body.iter("details") if node.get("id") == "life-data"]
    lines = [[english(cell) for cell in line.iter("td")] for line in table.iter("tr")]
    last = [cells[-1] for cells in lines if cells]
    assert last == ["—"] * 3 + ["0"] * 3
    said = Translator("en")("report.no_blocks")
    assert said in english(table)
    alone = body_of(report_html(*run(tmp_path / "b", ("paged",)), "en"))
    assert said not in english(alone)


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize(("arms", "cells"), [(ARMS, ["—", "3"]), (("paged",), ["3"])])
def test_a_summary_says_why_a_count_is_missing(
    tmp_path: Path, lang: str, arms: tuple[str, ...], cells: list[str]
) -> None:
    t = Translator(lang)
    _, results = run(tmp_path, arms, preemptions=3)
    said = markdown(results, lang)
    line = next(each for each in said.splitlines() if t("metric.preemptions") in each)
    assert re.findall(r"—|\d+", line) == cells
    assert (t("report.no_blocks") in said) == ("—" in cells)
    out, text = ConsoleReporter(lang, False), io.StringIO()
    out.console = Console(file=text, width=200)
    show_results(out, results, [])
    shown = text.getvalue()
    line = next(each for each in shown.splitlines() if t("metric.preemptions") in each)
    assert re.findall(r"—|\d+", line) == cells
    assert (t("report.no_blocks") in shown) == ("—" in cells)
