"""What a page of tables says, in Markdown for the page of a CI job: claims, the paper's check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from experiment.messages import user_error
from experiment.os_errors import os_reason
from experiment.report.bench_tables import Cells
from experiment.report.markdown import plain, within, write_step_summary
from experiment.report.tables_page import Told


def summarise(told: Told) -> None:
    """Append it where a CI job asks for a summary.

    Raises:
        UserError: the job's file cannot be written.
    """
    try:
        write_step_summary(tables_markdown(told))
    except OSError as error:
        path, why = str(error.filename), os_reason(error)
        raise user_error("error.out_unwritable", path=path, why=why) from error


def tables_markdown(told: Told) -> str:
    """Headline, facts, each table and the lists, in the language of what is told; under 50 kB."""
    parts = [
        f"## {plain(told.kicker)}\n\n**{plain(told.headline)}**",
        _items(told.facts),
        *map(_table, told.tables),
        *(f"**{plain(name)}**\n\n{_items(lines)}" for name, lines in told.lists.items()),
    ]
    return within("\n\n".join(part for part in parts if part) + "\n")


def _table(cells: Cells) -> str:
    rule = ["---" if index in cells.left else "---:" for index in range(len(cells.header))]
    rows = ([plain(cell) for cell in row] for row in cells.rows)
    lines = chain([[plain(cell) for cell in cells.header], rule], rows)
    table = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    notes = _items(cells.notes)
    return f"**{plain(cells.title)}**\n\n{table}" + (f"\n\n{notes}" if notes else "")


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)
