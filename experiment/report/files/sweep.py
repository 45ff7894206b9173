"""Writes the files of a sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiment.report.pages.index import write_listed
from experiment.report.pages.sweep import FILE, PAGE, TABLE, Row, sweep_csv, sweep_data, sweep_html


def write_sweep(directory: Path, rows: Sequence[Row], lang: str) -> list[Path]:
    """Write all files, and the index beside the directory where that is one of ours.

    Raises:
        UserError: one cannot be written.
    """
    data, table = sweep_data(rows), sweep_csv(rows)
    texts = {
        TABLE: table,
        FILE: json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n",
        PAGE: sweep_html(data, table, lang),
    }
    return write_listed(directory, texts, lang)
