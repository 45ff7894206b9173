"""Writes every file of a report into the run directory, each whole or not at all.

    summary.csv  experiment.csv  timeline.csv  readings.csv  report.html  plots/*.svg  plots/*.png

One file that cannot be made does not take the others with it: all are tried, and what went wrong
is raised together at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial, reduce
from pathlib import Path

from experiment.analysis.experiment_results import Better
from experiment.analysis.results import Results
from experiment.compare.figures import figures_of
from experiment.compare.results import Figure
from experiment.files.bounded_reading import check_inside
from experiment.files.os_errors import os_reason
from experiment.record.log import Record, write_atomic
from experiment.report.facts.csv_text import csv_encoding
from experiment.report.facts.experiment_table import experiment_frame
from experiment.report.facts.series import all_series
from experiment.report.facts.tables import readings_frame, summary_frame, timeline_csv, to_csv
from experiment.report.files.ci_benchmark import FILES, benchmark_json
from experiment.report.files.plots import draw_plots
from experiment.report.page.page import report_html
from experiment.text.messages import Message, message


class ReportError(OSError):
    """Some files of a report could not be written; the others were.

    Attributes:
        written: files that are there.
        failures: name of each file that is not, and why.
    """

    def __init__(self, written: list[Path], failures: list[tuple[str, Exception]]) -> None:
        reasons = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failures)
        super().__init__(reasons)
        self.written = written
        self.failures = failures

    def reason(self) -> Message:
        """Which files, and why; files with one reason are named together."""
        groups: dict[str, tuple[list[str], Message]] = {}
        for name, error in self.failures:
            why = _why(error)
            groups.setdefault(why.model_dump_json(), ([], why))[0].append(name)
        parts = [
            message("error.files_because", files=", ".join(names), why=why.model_dump())
            for names, why in groups.values()
        ]
        return reduce(
            lambda one, two: message("error.both", one=one.model_dump(), two=two.model_dump()),
            parts,
        )


def _why(error: Exception) -> Message:
    """A reason of the system in the user's language; a library's own words as they are."""
    if isinstance(error, OSError) and error.errno:
        return Message.model_validate(os_reason(error))
    return message("error.words", name=type(error).__name__, text=" ".join(str(error).split()))


@dataclass(frozen=True, slots=True)
class _File:
    name: str
    content: Callable[[], str | bytes]
    encoding: str = "utf-8"


def write_reports(record: Record, results: Results, lang: str) -> list[Path]:
    """Write all files in ``lang`` (the HTML page holds both languages) and return their paths.

    Raises:
        ReportError: some could not be written; the rest was.
    """
    written: list[Path] = []
    failures: list[tuple[str, Exception]] = []
    for file in _files(record, results, lang):
        path = record.directory / file.name
        try:
            _write(check_inside(record.directory, path), file.content(), file.encoding)
        except Exception as error:
            failures.append((file.name, error))
        else:
            written.append(path)
    if failures:
        raise ReportError(written, failures) from failures[0][1]
    return written


def _files(record: Record, results: Results, lang: str) -> Iterator[_File]:
    series = cache(lambda: all_series(record))  # replays the log: once, and only when drawing
    figures = cache(lambda: figures_of(results).values())
    yield _File("report.html", lambda: report_html(record, results, lang, series()))
    yield _File("summary.csv", lambda: to_csv(summary_frame(results)), csv_encoding())
    found = results.experiment
    if found is not None:
        yield _File("experiment.csv", lambda: to_csv(experiment_frame(found)), csv_encoding())
    for better, name in FILES.items():
        yield _File(name, partial(_benchmark, figures, better))
    yield _File("timeline.csv", lambda: timeline_csv(record, series()), csv_encoding())
    yield _File("readings.csv", lambda: to_csv(readings_frame(record, results)), csv_encoding())
    for name, draw in draw_plots(series, results, lang):
        yield _File(f"plots/{name}", draw)


def _write(path: Path, content: str | bytes, encoding: str) -> None:
    if isinstance(content, bytes):
        # Latin-1 maps every byte to itself, so the one atomic writer serves pictures too.
        content, encoding = content.decode("latin-1"), "latin-1"
    write_atomic(path, content, encoding)


def _benchmark(figures: Callable[[], Iterable[Figure]], better: Better) -> str:
    return benchmark_json(figures(), better)
