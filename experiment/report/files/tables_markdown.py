"""Markdown tables for a CI job: claims, the paper's check, limits of a gate."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.compare.gate import GateResult
from experiment.report.facts.compare import GATE_COLUMNS, gate_headline, limit_cells
from experiment.report.facts.page_text import Cells, PageText
from experiment.report.files.markup import items, plain, summarise_job, table, within
from experiment.text import Translator


def summarise(text: PageText) -> None:
    """Append a page's texts to the summary of a CI job, if any.

    Raises:
        UserError: the job's file cannot be written.
    """
    summarise_job(tables_markdown(text))


def tables_markdown(text: PageText) -> str:
    """Headline, facts, each table and the lists, in the language of what is text; under 50 kB."""
    parts = [
        f"## {plain(text.kicker)}\n\n**{plain(text.headline)}**",
        items([*text.lines, *text.alarms, *text.facts, *text.notes]),
        *map(cells_markdown, text.tables),
        *(f"**{plain(name)}**\n\n{items(lines)}" for name, lines in text.lists.items()),
    ]
    return within("\n\n".join(part for part in parts if part) + "\n")


def cells_markdown(cells: Cells) -> str:
    """A table with title and notes."""
    notes = f"\n\n{items(cells.notes)}" if cells.notes else ""
    return f"**{plain(cells.title)}**\n\n{table([cells.header, *cells.rows], cells.left)}{notes}"


def gate_markdown(t: Translator, judged: Sequence[GateResult]) -> str:
    """Each limit with its figure and verdict; failed ones first."""
    rows = [[t(f"compare.gate.column_{name}") for name in GATE_COLUMNS]]
    rows += [limit_cells(t, one) for one in sorted(judged, key=lambda one: one.verdict == "passed")]
    text = t.message(gate_headline(judged))
    title = plain(t("compare.gate.title"))
    return f"### {title}\n\n{plain(text)}\n\n{table(rows, left=(0, 1, 4))}\n"
