"""Write Markdown: escaped text, tables, lists, CI summaries, and marked regions of pages.

A CI job's summary (``GITHUB_STEP_SUMMARY``) is appended to. In a page only the region between two
marks is replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import read_bounded
from experiment.files.os_errors import os_reason, writing
from experiment.record.log import write_atomic
from experiment.text import readable
from experiment.text.errors import user_error

MAX_BYTES = 50_000
# GitHub's limit for the summary of a step, which may contain many runs.
MAX_OF_A_STEP = 2**20
_CUT = "\n…\n"
_VARIABLE = "GITHUB_STEP_SUMMARY"
_ESCAPED = str.maketrans(
    {sign: "\\" + sign for sign in "\\`*_[]|#~"} | {sign: f"&#{ord(sign)};" for sign in "<>&\u200b"}
)
# A zero-width space prevents GitHub from linking addresses, @names and #numbers.
_LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


def plain(text: str) -> str:
    """Escape text for Markdown: no markup, links, mentions or table cells."""
    line = " ".join(readable(text).split())
    return _LINKED.sub("\u200b", line).translate(_ESCAPED)


def within(text: str) -> str:
    """Cut at the end of a line, to at most :data:`MAX_BYTES`."""
    data = text.encode()
    if len(data) < MAX_BYTES:
        return text
    kept = data[: MAX_BYTES - 10].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1] + _CUT


def table(rows: Iterable[Sequence[str]], left: Iterable[int] | None = None) -> str:
    """A table with the first row as head; columns not in ``left`` are right-aligned."""
    head, *others = [[plain(cell) for cell in row] for row in rows]
    ahead = range(len(head)) if left is None else tuple(left)
    rule = ["---" if place in ahead else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


def items(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {plain(line)}" for line in lines)


def put_between(path: Path, name: str, make: Callable[[str], str], is_new: bool = False) -> None:
    """Replace the region of a page between the marks ``NAME: begin`` and ``NAME: end``.

    Args:
        make: returns the new text for the old one.
        is_new: create a missing page.

    Raises:
        UserError: the page lacks the marks, or cannot be read or written.
    """
    begin, end = marks(name)
    page = f"{begin}\n{end}\n" if is_new and not path.exists() else _page(path)
    with writing(path):
        before, begins, rest = page.partition(begin)
        kept, ends, after = rest.partition(end)
        if not begins or not ends:
            raise user_error("error.bench.no_marks", path=str(path), begin=begin, end=end)
        write_atomic(path, f"{before}{begin}\n\n{make(kept)}\n{end}{after}")


def marks(name: str) -> tuple[str, str]:
    """Begin and end marks of a region."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def _page(path: Path) -> str:
    if not path.is_file():  # reading a pipe may block
        raise user_error("error.file_unreadable", path=str(path))
    try:
        return read_bounded(path, MAX_CONFIG_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error


def write_step_summary(text: str) -> Path | None:
    """Append a summary for a CI job; return its path, or None outside of CI.

    Text beyond the limit of the step's summary is omitted, with a mark.

    Raises:
        OSError: the file cannot be written.
    """
    place = os.environ.get(_VARIABLE)
    if not place:
        return None
    path = Path(place)
    with path.open("a", encoding="utf-8") as file:
        free = MAX_OF_A_STEP - len(_CUT.encode()) - path.stat().st_size
        if len(text.encode()) + 1 <= free:
            file.write(text + "\n")
        elif free >= 0:
            file.write(_CUT)
    return path


def summarise_job(text: str) -> None:
    """As :func:`write_step_summary`, with a user error.

    Raises:
        UserError: the job's file cannot be written.
    """
    try:
        write_step_summary(text)
    except OSError as error:
        path, why = str(error.filename), os_reason(error)
        raise user_error("error.out_unwritable", path=path, why=why) from error
