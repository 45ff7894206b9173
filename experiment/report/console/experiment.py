"""The result of an experiment on the console: tables, findings, contradictions."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from experiment.analysis.experiment_results import BUSY_NOTE, ExperimentResult, Finding
from experiment.analysis.finding_text import answer, below
from experiment.analysis.gains import cores_before
from experiment.analysis.results import Results
from experiment.experiments.findings import note
from experiment.experiments.registry import figure_name
from experiment.machine.background_load import is_busy
from experiment.report.console.lines import VERDICT_STYLES, Console
from experiment.report.facts.experiment import (
    Entry,
    cell_axis,
    ended,
    finding_title,
    gaps,
    groups,
    left_out,
)
from experiment.report.facts.page_text import said
from experiment.report.facts.texts import arm_name
from experiment.text import DASH


def show_experiment(
    out: Console, results: Results, result: ExperimentResult, files: list[str]
) -> None:
    """Print everything that follows the last arm."""
    out.section("section.experiment_result", title=out.t.message(note(result.name, "question")))
    _show_table(out, result)
    _show_missing(out, result)
    show_checked(out, result)
    shown = is_busy(cores_before(results.environment))  # when the command started
    for each in result.notes:
        if not (shown and each.key == BUSY_NOTE):
            out.paragraph(out.t("console.note", text=out.t.message(each)), "yellow")
    for text in results.differences:
        out.paragraph(out.t.message(text), "dim")
    out.section("section.seen")
    for finding in result.findings:
        _show_finding(out, result, finding)
    out.section("section.files")
    for name in files:
        out.path(name)


def _show_table(out: Console, result: ExperimentResult) -> None:
    """Print a section per figure, with a row per cell and a column per arm."""
    if not result.cells:
        return
    t = out.t
    rows: list[tuple[Text, Sequence[Text]]] = []
    for group in groups(result):
        name = figure_name(result.name, group.info.figure)
        rows.append((Text(t.message(name), style="bold"), ()))
        for label, entries in group.rows:
            cells = [_entry(out, one) for one in entries]
            rows.append((Text(said(t, label), justify="right"), cells))
    names = [arm_name(t, arm) for arm in result.arms]
    out.figures(t.message(cell_axis(result.cells[0].values)), names, rows)
    out.line(t("experiments.table_note"), "dim")


def _entry(out: Console, one: Entry) -> Text:
    if one.main is None:
        return Text(DASH)
    below = "" if one.below is None else f"\n{out.t.message(one.below)}"
    return Text(one.main + below, style="bold red" if one.wrong else "")


def _show_missing(out: Console, result: ExperimentResult) -> None:
    """Print failed and skipped arms, missing figures and missing predictions, with reasons."""
    show_ended_badly(out, result)
    for text in (*left_out(result), *gaps(result)):
        out.paragraph(out.t.message(text), "dim")


def show_checked(out: Console, result: ExperimentResult) -> None:
    """Print how many counts equal their predictions, and contradictions."""
    exact, predicted = result.exact_counts
    if predicted:
        style = "green" if exact == predicted else "bold red"
        out.paragraph(out.t("experiments.foretold", exact=exact, of=predicted), style)
    for problem in result.problems:
        out.paragraph(out.t.message(problem), "bold red")


def show_ended_badly(out: Console, result: ExperimentResult) -> None:
    """Print failed and skipped arms, with their cells and reasons."""
    for text in ended(result):
        out.paragraph(out.t.message(text), "yellow")


def _show_finding(out: Console, result: ExperimentResult, finding: Finding) -> None:
    line = Text()
    line.append(out.t.message(finding_title(result.name, finding)), style="bold")
    if finding.verdict is not None:
        line.append("  ")
        line.append(out.t(f"verdict.{finding.verdict}"), style=VERDICT_STYLES[finding.verdict])
    out.console.print()
    out.console.print(line)
    out.paragraph(out.t.message(answer(finding)), indent=2)
    for text in below(finding):
        out.paragraph(out.t.message(text), "dim", indent=2)
