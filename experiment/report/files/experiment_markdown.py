"""The section of an experiment in the Markdown summary: findings, predictions, arms left out."""

from __future__ import annotations

from experiment.analysis.experiment_results import ExperimentResult
from experiment.experiments.findings import note
from experiment.report.facts import experiment as words
from experiment.report.files.markup import items, plain
from experiment.report.files.tables_markdown import cells_markdown
from experiment.text import Translator


def experiment_markdown(t: Translator, result: ExperimentResult) -> list[str]:
    """Paragraphs: question, findings, figures with kvsim's predictions, contradictions."""
    exact, predicted = result.exact_counts
    counts = plain(t("experiments.foretold", exact=exact, of=predicted)) if predicted else ""
    charts = [table for table in words.figure_tables(t, result) if table.name]
    lists = [result.problems, result.notes, [*words.left_out(result), *words.ended(result)]]
    return [
        plain(t.message(note(result.name, "about"))),
        items(map(t.message, words.varied([cell.values for cell in result.cells]))),
        cells_markdown(words.finding_cells(t, result)),
        counts,
        *map(cells_markdown, charts),
        *(items(map(t.message, each)) for each in lists),
    ]
