"""The section of an experiment in the Markdown summary: findings, predictions, arms left out."""

from __future__ import annotations

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.finding_text import whole
from experiment.experiments.findings import note
from experiment.experiments.registry import figure_name
from experiment.report.facts import experiment as words
from experiment.report.facts.texts import arm_name
from experiment.report.files.markup import items, plain, table
from experiment.text import DASH, Translator
from experiment.text.messages import Message


def experiment_markdown(t: Translator, result: ExperimentResult) -> list[str]:
    """Paragraphs: question, findings, counts and kvsim's predictions, contradictions."""
    exact, predicted = result.exact_counts
    counts = plain(t("experiments.foretold", exact=exact, of=predicted)) if predicted else ""
    lists = [
        map(t.message, result.problems),
        map(t.message, result.notes),
        _not_run(t, result),
    ]
    return [
        plain(t.message(note(result.name, "about"))),
        items(map(t.message, words.varied([cell.values for cell in result.cells]))),
        _findings(t, result),
        counts,
        _counts(t, result),
        *map(items, lists),
    ]


def _findings(t: Translator, result: ExperimentResult) -> str:
    rows = [[t("experiments.column_finding"), t("experiments.column_verdict"),
             t("experiments.column_measured")]]  # fmt: skip
    rows += [
        [
            t.message(words.finding_title(result.name, each)),
            t(f"verdict.{each.verdict}") if each.verdict else DASH,
            t.message(whole(each)),
        ]
        for each in result.findings
    ]
    return table(rows)


def _counts(t: Translator, result: ExperimentResult) -> str:
    """Table of the charts' figures, each with kvsim's prediction."""
    if not result.cells:
        return ""
    names = [arm_name(t, arm) for arm in result.arms]
    rows = [[t.message(words.cell_axis(result.cells[0].values)), *names]]
    for group in words.groups(result):
        if group.info.figure not in result.charts:
            continue
        label = t.message(figure_name(result.name, group.info.figure))
        for where, entries in group.rows:
            if any(each.main for each in entries):
                rows.append([f"{label}: {_said(t, where)}", *(_entry(t, e) for e in entries)])
    return table(rows) if len(rows) > 1 else ""


def _entry(t: Translator, one: words.Entry) -> str:
    if one.main is None:
        return DASH
    return one.main if one.below is None else f"{one.main} ({t.message(one.below)})"


def _not_run(t: Translator, result: ExperimentResult) -> list[str]:
    """Excluded, skipped and failed arms, and why."""
    return [*map(t.message, (*words.left_out(result), *words.ended(result)))]


def _said(t: Translator, label: str | Message) -> str:
    return t.message(label) if isinstance(label, Message) else label
