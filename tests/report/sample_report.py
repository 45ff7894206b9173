"""The sample report that lies in the repository: a real run, without what names the machine.

python tests/report/sample_report.py reports/<run> docs/sample/report.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiment.analysis.conclusions import evaluate
from experiment.events import EnvironmentProbed, Event, RunStarted
from experiment.record.log import Record, read_record, write_atomic
from experiment.report.page.page import report_html
from experiment.text import DASH

# What names a machine or its place.
WITHHELD = (("cpu", "model"), ("system", "kernel"))


def without_host(record: Record) -> Record:
    """The same run on a machine of which versions, sizes and counts are said, and no names."""
    return replace(record, events=tuple(map(_nameless, record.events)))


def _nameless(event: Event) -> Event:
    if isinstance(event, RunStarted):
        return event.model_copy(update={"command": _without_place(event.command)})
    if not isinstance(event, EnvironmentProbed):
        return event
    facts: dict[str, Any] = dict(event.environment)
    for section, name in WITHHELD:
        facts[section] = facts[section] | {name: DASH}
    if facts["device"] == "cpu":
        facts["device_name"] = "CPU"
    return event.model_copy(update={"environment": facts})


def _without_place(command: Sequence[str]) -> list[str]:
    """The words without the directory that the run was to lie in."""
    pairs = zip(command, ("", *command), strict=False)
    return [word for word, before in pairs if "--out" not in (word, before)]


def main(run: Path, out: Path) -> None:
    """Write the page of the run; it opens in English and holds both languages."""
    record = without_host(read_record(run))
    write_atomic(out, report_html(record, evaluate(record), "en"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
