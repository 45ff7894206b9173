"""One written report for all tests that only look at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from busy_run import make_run, paged_plans, slab_plans
from pages import Opened, OpenPage
from sample import make_record, write_page

from experiment.analysis.conclusions import evaluate
from experiment.record.log import Record
from experiment.report.files.write import run_reports, write_files


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
    write_page(record)
    return record


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open pages, which are closed as the test ends; none of them may have complained."""
    pages: list[Opened] = []

    def opened(file: Path, **options: Any) -> Opened:
        pages.append(Opened(browser, file, **options))
        return pages[-1]

    yield opened
    for one in pages:
        one.context.close()
    assert [complaint for one in pages for complaint in one.complaints] == []
