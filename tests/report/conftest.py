"""One written report for all tests that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample import make_record

from experiment.conclusions import evaluate
from experiment.report.files import write_reports


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with every file of a report, in English."""
    directory = tmp_path_factory.mktemp("run")
    record = make_record(directory)
    write_reports(record, evaluate(record), "en")
    return directory


@pytest.fixture(scope="session")
def page(report: Path) -> str:
    """The text of its page."""
    return (report / "report.html").read_text(encoding="utf-8")
