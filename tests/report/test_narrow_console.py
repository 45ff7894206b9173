"""The consoles in a narrow terminal: a figure that lost its end would be another figure."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from sample import make_record

from experiment.events import EnvironmentProbed
from experiment.i18n import LANGUAGES
from experiment.record import Record
from experiment.report.console import ConsoleReporter

LINE = re.compile(r"^  \d\d:\d\d:\d\d  ", re.MULTILINE)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    directory: Path = tmp_path_factory.mktemp("narrow")
    return make_record(directory)


def memory_lines(record: Record, lang: str, width: int) -> list[str]:
    reporter = ConsoleReporter(lang)
    reporter.console = Console(file=io.StringIO(), width=width, color_system=None, _environ={})
    for event in record.events:
        if not isinstance(event, EnvironmentProbed):  # that of the sample is no whole one
            reporter.handle(event)
    printed = reporter.console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in printed.splitlines() if LINE.match(line)]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lines_of_memory_keep_every_size_whole(record: Record, lang: str) -> None:
    wide = memory_lines(record, lang, 200)
    assert len(wide) > 5
    assert memory_lines(record, lang, 50) == wide
