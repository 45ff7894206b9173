"""CSV: the one writer of every table, and the encoding of its files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from experiment.text import readable

# What a spreadsheet takes for a formula by its first character, full-width forms too.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def csv_encoding() -> str:
    """Encoding of CSV files: plain UTF-8, or with the mark that Excel needs to recognise it.

    ``PAGEDKV_CSV_BOM=1`` asks for the mark.
    """
    return "utf-8-sig" if os.environ.get("PAGEDKV_CSV_BOM", "") not in ("", "0") else "utf-8"


def csv_text(heads: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Text of a CSV file, without a byte order mark.

    None is an empty cell. A text that begins as a formula has ``'`` before it; its control
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
