"""Write the files of a report into its directory, each atomically.

    summary.csv  experiment.csv  timeline.csv  readings.csv  report.html  plots/*.svg  plots/*.png

All files are tried; errors are raised together at the end.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from experiment.analysis.experiment_results import Better
from experiment.analysis.results import Results
from experiment.compare.figures import figures_of
from experiment.files.bounded_reading import check_inside
from experiment.files.locks import RENDER_WAIT_S, directory_lock
from experiment.files.os_errors import FilesError, writing
from experiment.record.log import Record, write_atomic
from experiment.report import Content, Reports
from experiment.report.facts.csv_text import csv_encoding
from experiment.report.facts.series import all_series
from experiment.report.facts.tables import (
    experiment_csv,
    readings_csv,
    summary_csv,
    timeline_csv,
)
from experiment.report.files.ci_benchmark import FILES, benchmark_json
from experiment.report.files.plots import draw_plots
from experiment.report.page.page import report_html
from experiment.report.pages.index import write_index
from experiment.text.errors import ExitCode


def write_files(directory: Path, reports: Reports) -> list[Path]:
    """Write the files of a report and return their paths.

    Raises:
        FilesError: some files could not be created or written.
    """
    written: list[Path] = []
    failures: list[tuple[str, Exception]] = []
    for name, make in reports.items():
        path = directory / name
        try:
            _write(check_inside(directory, path), make() if callable(make) else make)
        except Exception as error:
            failures.append((name, error))
        else:
            written.append(path)
    if failures:
        raise FilesError(written, failures) from failures[0][1]
    return written


def write_listed(directory: Path, reports: Reports, lang: str) -> list[Path]:
    """Write the files of a report, and the index next to their directory; return all paths.

    Raises:
        UserError: a file cannot be written, or another process has the lock for a minute.
    """
    with writing(directory, ExitCode.UNWRITABLE):
        directory.mkdir(parents=True, exist_ok=True)
    with writing(directory, ExitCode.UNWRITABLE), directory_lock(directory, RENDER_WAIT_S):
        files = write_files(directory, reports)
        index = write_index(directory, lang)
    return [*files, *([index] if index else [])]


def run_reports(record: Record, results: Results, lang: str) -> Reports:
    """Files of a run in ``lang``; the HTML page has both languages."""
    series = cache(lambda: all_series(record))  # replays the log, so only once and if needed
    figures = cache(lambda: figures_of(results).values())

    def benchmark(better: Better) -> str:
        return benchmark_json(figures(), better)

    experiment = results.experiment
    return {
        "report.html": lambda: report_html(record, results, lang, series()),
        "summary.csv": lambda: summary_csv(results),
        **({"experiment.csv": lambda: experiment_csv(experiment)} if experiment else {}),
        **{name: partial(benchmark, better) for better, name in FILES.items()},
        "timeline.csv": lambda: timeline_csv(record, series()),
        "readings.csv": lambda: readings_csv(record, results),
        **{f"plots/{name}": draw for name, draw in draw_plots(series, results, lang)},
    }


def _write(path: Path, content: Content) -> None:
    encoding = csv_encoding() if path.suffix == ".csv" else "utf-8"
    if isinstance(content, bytes):
        # Latin-1 maps every byte to itself, so images can use the same writer.
        content, encoding = content.decode("latin-1"), "latin-1"
    write_atomic(path, content, encoding)
