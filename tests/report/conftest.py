"""One written report for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest
from busy_run import make_run, paged_plans, slab_plans
from sample import make_record

from experiment.analysis.conclusions import evaluate
from experiment.record.log import Record
from experiment.report.files.write import run_reports, write_files
from experiment.report.page.page import report_html


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with every file of a report, in English."""
    directory = tmp_path_factory.mktemp("run")
    record = make_record(directory)
    write_files(record.directory, run_reports(record, evaluate(record), "en"))
    return directory


@pytest.fixture(scope="session")
def page(report: Path) -> str:
    """The text of its page."""
    return (report / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """A run with sharing, copies, evictions, preemption and swapping; its page is beside it."""
    record = make_run(tmp_path_factory.mktemp("busy"), paged_plans(), slab_plans())
    page = report_html(record, evaluate(record), "en")
    (record.directory / "report.html").write_text(page, encoding="utf-8")
    return record
