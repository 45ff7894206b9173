"""Markdown: text that makes no markup, tables, lists, and the two places that they are put into.

A CI job's summary (``GITHUB_STEP_SUMMARY``) is added to; in a page the region between two marks is
written anew, and the rest of it is left alone.
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

MOST_BYTES = 50_000
# A step's file may be of many runs; GitHub shows none of it where it is longer than this.
MOST_OF_A_STEP = 2**20
_CUT = "\n…\n"
_VARIABLE = "GITHUB_STEP_SUMMARY"
_ESCAPED = str.maketrans(
    {sign: "\\" + sign for sign in "\\`*_[]|#~"} | {sign: f"&#{ord(sign)};" for sign in "<>&\u200b"}
)
# GitHub links addresses, @names and #numbers, unless a zero-width space divides them.
_LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


def plain(text: str) -> str:
    """Text as Markdown shows it: foreign text makes no markup, link or mention, breaks no table."""
    line = " ".join(readable(text).split())
    return _LINKED.sub("\u200b", line).translate(_ESCAPED)


def within(text: str) -> str:
    """Cut at the end of a line where it would become too long for :data:`MOST_BYTES`."""
    data = text.encode()
    if len(data) < MOST_BYTES:
        return text
    kept = data[: MOST_BYTES - 10].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1] + _CUT


def table(rows: Iterable[Sequence[str]], left: Iterable[int] | None = None) -> str:
    """A table whose first row is its head; columns that are not in ``left`` hold numbers."""
    head, *others = [[plain(cell) for cell in row] for row in rows]
    ahead = range(len(head)) if left is None else tuple(left)
    rule = ["---" if place in ahead else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *others))


def items(lines: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {plain(line)}" for line in lines)


def put_between(path: Path, name: str, make: Callable[[str], str], is_new: bool = False) -> None:
    """Write the region of a page between the marks ``NAME: begin`` and ``NAME: end``.

    Args:
        make: the new text from the old one.
        is_new: a page that is not there is made.

    Raises:
        UserError: the page has no such marks, or cannot be read or written.
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
    """Where a region begins and ends."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def _page(path: Path) -> str:
    if not path.is_file():  # a pipe would be waited for without end
        raise user_error("error.file_unreadable", path=str(path))
    try:
        return read_bounded(path, MAX_CONFIG_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error


def write_step_summary(text: str) -> Path | None:
    """Append a summary where a CI job asks for one; None where it does not.

    What would make the file of the step too long for the job's page is left out, with a sign: the
    summaries that are there stay, and each run's report has its own.

    Raises:
        OSError: the file cannot be written.
    """
    place = os.environ.get(_VARIABLE)
    if not place:
        return None
    path = Path(place)
    with path.open("a", encoding="utf-8") as file:
        free = MOST_OF_A_STEP - len(_CUT.encode()) - path.stat().st_size
        if len(text.encode()) + 1 <= free:
            file.write(text + "\n")
        elif free >= 0:
            file.write(_CUT)
    return path


def summarise_job(text: str) -> None:
    """The same for a command that has nothing else to lose.

    Raises:
        UserError: the job's file cannot be written.
    """
    try:
        write_step_summary(text)
    except OSError as error:
        path, why = str(error.filename), os_reason(error)
        raise user_error("error.out_unwritable", path=path, why=why) from error
