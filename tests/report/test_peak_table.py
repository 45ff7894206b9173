"""The table of the peak tells unwritten slots that are written later from those that never are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_keys import body_of
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.record.log import Record
from experiment.report.facts.texts import arm_name
from experiment.report.page.page import report_html
from experiment.text import Translator, catalogue

PARTS = ("state.unwritten", "report.peak.later", "report.peak.never")


def said(node: Any) -> str:
    """What stands there in English, and in no language."""
    inside = [node.text or "", *(said(each) for each in node if each.get("lang") != "zh")]
    return "".join(inside)


def test_what_is_unwritten_is_split_by_what_the_log_says_of_later(busy: Record) -> None:
    body = body_of((busy.directory / "report.html").read_text(encoding="utf-8"))
    (table,) = [
        table
        for details in body.iter("details")
        if details.get("id") == "peak-data"
        for table in details.iter("table")
    ]
    head, *rows = table.iter("tr")
    heads = [said(cell) for cell in head]
    places = [heads.index(catalogue("en")[part]) for part in PARTS]
    peaks = [arm.peak for arm in evaluate(busy).arms if arm.peak]
    assert len(rows) == len(peaks) == 2
    shown = [[int(said(list(row)[place]).replace(",", "")) for place in places] for row in rows]
    assert shown == [
        [peak.unwritten, peak.unwritten - peak.never_written, peak.never_written] for peak in peaks
    ]
    assert any(later and never for _, later, never in shown)


@pytest.mark.parametrize("table", ["peak-data", "map-data"])
def test_an_arm_without_a_peak_keeps_its_row_with_a_dash_and_the_reason(
    tmp_path: Path, table: str
) -> None:
    record = make_record(tmp_path)
    results = evaluate(record)
    body = body_of(report_html(record, results, "en"))
    (details,) = [one for one in body.iter("details") if one.get("id") == table]
    head, *rows = details.iter("tr")
    t = Translator("en")
    assert [said(row.find("th")) for row in rows] == [arm_name(t, arm.arm) for arm in results.arms]
    without = [(row, arm) for row, arm in zip(rows, results.arms, strict=True) if not arm.peak]
    assert {arm.status for _, arm in without} == {"failed", "skipped"}
    for row, arm in without:
        (cell,) = row.iter("td")
        assert int(cell.get("colspan")) == len(list(head)) - 1
        assert arm.reason is not None
        assert said(cell.find("span")) == "—"
        assert said(cell.find("small")) == t.message(arm.reason)
