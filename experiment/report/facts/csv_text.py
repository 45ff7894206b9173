"""Write CSV tables, and choose the encoding of their files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from experiment.text import readable

# First characters of formulas in spreadsheets, full-width forms included.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def csv_encoding() -> str:
    """Encoding of CSV files: UTF-8, with the byte order mark for Excel if ``PAGEDKV_CSV_BOM=1``."""
    return "utf-8-sig" if os.environ.get("PAGEDKV_CSV_BOM", "") not in ("", "0") else "utf-8"


def csv_text(heads: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Text of a CSV file, without byte order mark.

    None is an empty cell. A text that begins like a formula is prefixed by ``'``; control
    characters are escaped.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in chain([heads], rows))
    return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return readable("'" + value if value.startswith(_FORMULA) else value)
