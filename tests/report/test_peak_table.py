"""The table of the peak tells unwritten slots that are written later from those that never are."""

from __future__ import annotations

from typing import Any

from keyed_page import body_of

from experiment.conclusions import evaluate
from experiment.i18n import catalogue
from experiment.record import Record

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
