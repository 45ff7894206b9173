"""The result of an experiment on the console: the texts of the page, or twenty-five lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from experiment.analysis.experiment_results import BUSY_NOTE, ExperimentResult, Finding
from experiment.analysis.finding_text import answer
from experiment.analysis.gains import cores_before
from experiment.analysis.results import Results
from experiment.experiments.registry import figure_name
from experiment.machine.background_load import is_busy
from experiment.report.console.lines import STYLES, Console
from experiment.report.facts.experiment import (
    Entry,
    Group,
    cell_axis,
    cell_label,
    ended,
    finding_title,
    groups,
)
from experiment.report.facts.texts import arm_name, said
from experiment.report.page.experiment import experiment_text
from experiment.text import DASH

if TYPE_CHECKING:
    from experiment.report.console.reporter import ConsoleReporter

# More columns are hard to read on 80 characters.
_MOST_COLUMNS, _MOST_ROWS, _MOST_FINDINGS, _MOST_REASONS = 4, 8, 5, 2


def show_experiment(
    out: Console, results: Results, result: ExperimentResult, files: Sequence[str]
) -> None:
    """Print everything that follows the last arm."""
    if is_busy(cores_before(results.environment)):  # shown when the command started
        notes = [each for each in result.notes if each.key != BUSY_NOTE]
        result = result.model_copy(update={"notes": notes})
    text = experiment_text(out.t, result, "")
    differences = map(out.t.message, results.differences)
    out.page(replace(text, facts=[*text.facts, *differences]))
    out.section("section.files")
    for name in files:
        out.path(name)


def show_brief(out: ConsoleReporter, result: ExperimentResult, files: Sequence[str]) -> None:
    """Print everything that follows the last arm; the first finding is the answer."""
    if result.findings:
        out.paragraph(out.t.message(answer(result.findings[0])), "bold")
    # The first chart is that of the answer.
    if found := sorted(groups(result), key=lambda group: group[0].figure not in result.charts[:1]):
        _show_table(out, result, found)
    show_ended_badly(out, result)
    exact, predicted = result.exact_counts
    if predicted:
        style = "green" if exact == predicted else "bold red"
        out.paragraph(out.t("experiments.foretold", exact=exact, of=predicted), style)
    for problem in result.problems:
        out.paragraph(out.t.message(problem), "bold red")
    judged = [(one, one.verdict) for one in result.findings if one.verdict is not None]
    table = out.table("", "")
    for finding, verdict in judged[:_MOST_FINDINGS]:
        title = out.t.message(finding_title(result.name, finding))
        table.add_row(Text(out.t(f"verdict.{verdict}"), STYLES[verdict]), title)
    if judged:
        out.console.print(table)
        _show_reasons(out, [finding for finding, _ in judged[:_MOST_FINDINGS]], result.findings[0])
    out.show_report(files)


def _show_reasons(out: Console, judged: Sequence[Finding], answered: Finding) -> None:
    """Print why findings have no verdict, each reason once; not that of the answer above."""
    reasons = [one.reason for one in judged if one.verdict == "untested"]
    texts = dict.fromkeys(
        out.t.message(why) for why in reasons if why not in (None, answered.reason)
    )
    for text in list(texts)[:_MOST_REASONS]:
        unknown = out.t("verdict.untested")
        out.paragraph(out.t("console.problem", arm=unknown, text=text), "dim")


def _show_table(out: Console, result: ExperimentResult, found: Sequence[Group]) -> None:
    """Print a row per cell: all figures of a single arm, or the first varying one of several."""
    if len(result.arms) == 1:
        found = found[:_MOST_COLUMNS]
        heads = [out.t.message(figure_name(result.name, info.figure)) for info, _ in found]
        rows = {
            place: [of[place][0] if place in of else Entry(None) for _, of in found]
            for place in range(len(result.cells))
        }
    else:
        varying = (
            (info, of) for info, of in found
            if len({tuple(one.main for one in entries) for entries in of.values()}) > 1
        )  # fmt: skip
        info, rows = next(varying, found[0])
        out.line(out.t.message(figure_name(result.name, info.figure)), "dim")
        heads = [arm_name(out.t, arm) for arm in result.arms]
    axis = out.t.message(cell_axis(result.cells[0].values))
    table = out.table(axis, *heads, right=range(1, len(heads) + 1))
    for place, entries in list(rows.items())[:_MOST_ROWS]:
        cells = (Text(one.main or DASH, "bold red" if one.wrong else "") for one in entries)
        table.add_row(said(out.t, cell_label(result.cells[place].values)), *cells)
    out.console.print(table)
    if len(rows) > _MOST_ROWS:
        out.line(out.t("experiments.more_rows", n=len(rows) - _MOST_ROWS), "dim")


def show_ended_badly(out: Console, result: ExperimentResult) -> None:
    """Print failed and skipped arms, with their cells and reasons."""
    for text in ended(result):
        out.paragraph(out.t.message(text), "yellow")
