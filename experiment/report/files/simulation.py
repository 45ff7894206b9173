"""Writes the reports of a simulation, each whole or not at all.

report.html  summary.csv  timeline.csv  sweeps.csv
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiment.record.log import write_atomic
from experiment.report.facts.csv_text import csv_encoding
from experiment.report.facts.simulation_tables import tables_of
from experiment.report.pages.simulation import simulation_html


def write_reports(directory: Path, data: Mapping[str, Any], lang: str) -> list[Path]:
    """Write all files (the page holds both languages) and return their paths, the page first.

    Raises:
        OSError: the directory cannot be written to.
    """
    tables = tables_of(data)
    page = directory / "report.html"
    write_atomic(page, simulation_html(data, tables, lang))
    for name, text in tables.items():
        write_atomic(directory / name, text, csv_encoding())
    return [page, *(directory / name for name in tables)]
