"""The speeds of a benchmark in a Markdown page, between two marks; the rest of it is left alone."""

from __future__ import annotations

from pathlib import Path

from experiment.bench.data import BenchData
from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import read_bounded
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.report.facts.bench import facts
from experiment.report.facts.bench_tables import speed_tables
from experiment.report.files.markdown import plain
from experiment.report.files.tables_markdown import cells_markdown
from experiment.text import Translator
from experiment.text.errors import user_error

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"


def write_page(path: Path, data: BenchData) -> None:
    """Put the tables between the marks of a page; a page that is not there is made.

    Raises:
        UserError: the page has no such marks, or cannot be read or written.
    """
    page = _page(path) if path.exists() else f"{BEGIN}\n{END}\n"
    with writing(path):
        before, begin, rest = page.partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise user_error("error.bench.no_marks", path=str(path), begin=BEGIN, end=END)
        write_atomic(path, f"{before}{BEGIN}\n\n{markdown(data)}\n{END}{after}")


def _page(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for without end
        raise user_error("error.file_unreadable", path=str(path))
    try:
        return read_bounded(path, MAX_CONFIG_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error


def markdown(data: BenchData) -> str:
    """Facts as a list, then the tables of speed with their notes; in English, as the page is."""
    t = Translator("en")
    parts = ["\n".join(f"- {plain(fact)}" for fact in facts(t, data))]
    parts += map(cells_markdown, speed_tables(t, data))
    return "\n\n".join(parts) + "\n"
