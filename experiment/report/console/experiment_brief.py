"""A brief result of an experiment: the answer, one table, the findings, the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.finding_text import answer
from experiment.experiments.registry import figure_name
from experiment.report.console.experiment import show_checked, show_ended_badly
from experiment.report.console.lines import VERDICT_STYLES
from experiment.report.facts.experiment import (
    Entry,
    Group,
    cell_axis,
    cell_label,
    finding_title,
    groups,
)
from experiment.report.facts.page_text import said
from experiment.report.facts.texts import arm_name
from experiment.text import DASH

if TYPE_CHECKING:
    from experiment.report.console.reporter import ConsoleReporter

# More columns are hard to read on 80 characters.
_MOST_COLUMNS, _MOST_ROWS, _MOST_FINDINGS = 4, 8, 5


def show_brief(out: ConsoleReporter, result: ExperimentResult, files: Sequence[str]) -> None:
    """Print everything that follows the last arm; the first finding is the answer."""
    if result.findings:
        out.paragraph(out.t.message(answer(result.findings[0])), "bold")
    if result.cells:
        _show_table(out, result)
    show_ended_badly(out, result)
    show_checked(out, result)
    _show_findings(out, result)
    out.show_report(files)


def _show_table(out: ConsoleReporter, result: ExperimentResult) -> None:
    """Print a row per cell: all figures of a single arm, or the first varying one of several."""
    found = groups(result)
    if not found:
        return
    if len(result.arms) == 1:
        found = found[:_MOST_COLUMNS]
        heads = [out.t.message(figure_name(result.name, group.info.figure)) for group in found]
        rows = [
            (cell_label(cell.values), [_only(group, place) for group in found])
            for place, cell in enumerate(result.cells)
        ]
    else:
        group = next((group for group in found if _varies(group)), found[0])
        out.line(out.t.message(figure_name(result.name, group.info.figure)), "dim")
        heads = [arm_name(out.t, arm) for arm in result.arms]
        rows = [(label, list(entries)) for label, entries in group.rows]
    axis = out.t.message(cell_axis(result.cells[0].values))
    table = out.table(axis, *heads, right=range(1, len(heads) + 1))
    for label, entries in rows[:_MOST_ROWS]:
        table.add_row(said(out.t, label), *(_entry(one) for one in entries))
    out.console.print(table)
    if len(rows) > _MOST_ROWS:
        out.line(out.t("experiments.more_rows", n=len(rows) - _MOST_ROWS), "dim")


def _varies(group: Group) -> bool:
    """Whether the figure differs between cells."""
    return len({tuple(entry.main for entry in entries) for _, entries in group.rows}) > 1


def _only(group: Group, place: int) -> Entry:
    """The entry of the only arm in a cell."""
    rows = dict(zip(group.cells, group.rows, strict=True))
    return rows[place][1][0] if place in rows else Entry(None)


def _entry(one: Entry) -> Text:
    return Text(one.main or DASH, style="bold red" if one.wrong else "")


def _show_findings(out: ConsoleReporter, result: ExperimentResult) -> None:
    """Print the verdict and the name of each finding."""
    table = out.table("", "")
    judged = [finding for finding in result.findings if finding.verdict is not None]
    for finding in judged[:_MOST_FINDINGS]:
        assert finding.verdict is not None
        verdict = Text(out.t(f"verdict.{finding.verdict}"), VERDICT_STYLES[finding.verdict])
        table.add_row(verdict, out.t.message(finding_title(result.name, finding)))
    if judged:
        out.console.print(table)
