"""Write CSV tables, and choose the encoding of their files."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from experiment.text import readable

# Where a spreadsheet may see the beginning of a formula, full-width forms too: that of the cell, or
# behind the separator of another dialect.
_FORMULA = re.compile(r"(?:^|(?<=;))(?=\s*[=+\-@＝＋－＠])|^(?=[\t\r\n])")
_BREAKS = str.maketrans({"\n": r"\n", "\t": r"\t"})


def csv_encoding() -> str:
    """Encoding of CSV files: UTF-8, with the byte order mark for Excel if ``PAGEDKV_CSV_BOM=1``."""
    return "utf-8-sig" if os.environ.get("PAGEDKV_CSV_BOM", "") not in ("", "0") else "utf-8"


def csv_text(heads: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """Text of a CSV file, without byte order mark.

    None is an empty cell. A formula that begins in a text has ``'`` before it.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([csv_cell(value) for value in row] for row in chain([heads], rows))
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """A cell as it is written: no text is a formula, none has line breaks or control characters."""
    if not isinstance(value, str):
        return value
    return readable(_FORMULA.sub("'", value).translate(_BREAKS))
