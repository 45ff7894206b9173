"""The consoles in a narrow terminal: a figure that lost its end would be another figure."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from sample import make_record

from experiment.events import EnvironmentProbed
from experiment.record.log import Record
from experiment.report.console.reporter import ConsoleReporter
from experiment.text import LANGUAGES

LINE = re.compile(r"^  \d\d:\d\d:\d\d  ")
SIZE = re.compile(r"\d+(?:\.\d+)? (?:[KMG]i)?B\b")


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
    return [line.rstrip() for line in printed.splitlines()]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_lines_of_memory_keep_every_size_whole(record: Record, lang: str) -> None:
    wide = memory_lines(record, lang, 200)
    sizes = [size for line in wide if LINE.match(line) for size in SIZE.findall(line)]
    assert len(sizes) > 5
    narrow = memory_lines(record, lang, 50)
    assert max(map(cell_len, narrow)) <= 50
    found = Counter(size for line in narrow for size in SIZE.findall(line))
    assert not Counter(sizes) - found
