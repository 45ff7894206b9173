"""What a page of tables says, in Markdown for the page of a CI job: claims, the paper's check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from experiment.report.facts.bench_tables import Cells
from experiment.report.files.markdown import plain, summarise_job, within
from experiment.report.pages.tables import Told


def summarise(told: Told) -> None:
    """Append it where a CI job asks for a summary.

    Raises:
        UserError: the job's file cannot be written.
    """
    summarise_job(tables_markdown(told))


def tables_markdown(told: Told) -> str:
    """Headline, facts, each table and the lists, in the language of what is told; under 50 kB."""
    parts = [
        f"## {plain(told.kicker)}\n\n**{plain(told.headline)}**",
        _items(told.facts),
        *map(cells_markdown, told.tables),
        *(f"**{plain(name)}**\n\n{_items(lines)}" for name, lines in told.lists.items()),
    ]
    return within("\n\n".join(part for part in parts if part) + "\n")


def cells_markdown(cells: Cells) -> str:
    """A table with title and notes."""
    rule = ["---" if index in cells.left else "---:" for index in range(len(cells.header))]
    lines = chain([map(plain, cells.header), rule], (map(plain, row) for row in cells.rows))
    table = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    notes = "\n".join(f"- {plain(note)}" for note in cells.notes)
    return f"**{plain(cells.title)}**\n\n{table}" + (f"\n\n{notes}" if notes else "")


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)
