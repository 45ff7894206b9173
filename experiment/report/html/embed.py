"""Data embedded in a page: escaped JSON, and compressed tables."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from experiment.report.facts.csv_text import csv_encoding
from experiment.text import STEERING

_MAX_TABLE = 400_000  # bytes of a packed table in a page
# Signs with a meaning in HTML or script, and invisible ones.
_UNSAFE = re.compile(f"[<>&]|{STEERING.pattern}")


def safe_json(data: Any) -> Markup:
    """JSON that can end neither its element nor a line of script."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return Markup(text)  # noqa: S704 - every sign with a meaning in HTML is escaped above


def packed(text: str) -> str:
    """Compress a table for the script of the page: gzip in base64."""
    return base64.b64encode(gzip.compress(text.encode(csv_encoding()), 6, mtime=0)).decode()


def packed_tables(tables: Mapping[str, str]) -> dict[str, str]:
    """Compress tables, by file name; a table that would be too large for a page is left out."""
    made = {name: packed(text) for name, text in tables.items()}
    return {name: table for name, table in made.items() if len(table) <= _MAX_TABLE}
