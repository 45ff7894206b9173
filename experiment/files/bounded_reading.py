"""Files that someone else may have written: read with a limit, refused in one line.

A run directory, a trace or a config may come from anywhere. Nothing in it may make the program
read without end, write outside of the directory it was given, or end in a traceback.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from experiment.files.parse_memory import PLAIN, Room, memory_limit
from experiment.text.errors import UserError, cut, user_error
from experiment.text.personal_names import with_names

# As Python's objects, JSON may take over twenty times its bytes; this stays below 1 GiB.
MAX_JSON_BYTES = 32 << 20
# A line of an event log: the prompts and token ids of a whole workload stand in one.
MAX_LINE_BYTES = 128 << 20
MAX_LOG_BYTES = 4 << 30
# What reading and evaluating data raises that does not fit together.
_CONTRADICTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)


def given_path(text: str) -> Path:
    """A path as a person, or a record, gives it: ``~`` is a home, ``$USER`` a name in a path."""
    path = Path(with_names(text))
    try:
        return path.expanduser()
    except RuntimeError:  # ~nobody, or no home at all: there will be no such file
        return path


def name_of(path: Path) -> str:
    """Its name as a text; bytes that are no UTF-8 are shown as signs that stand for none."""
    return os.fsencode(path.name).decode("utf-8", errors="replace")


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of a file.

    Raises:
        UserError: it is missing, unreadable, larger than ``limit`` bytes, or what it holds takes
            more memory than reading may (see :mod:`experiment.files.parse_memory`).
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise user_error("error.file_missing", path=str(path)) from error
    except (OSError, ValueError) as error:  # a null byte in its name is a ValueError
        raise user_error("error.file_unreadable", path=str(path)) from error
    if len(data) > limit:
        raise user_error("error.file_too_large", path=str(path), limit=limit)
    Room(path).make(data, PLAIN)
    return data


def parse_json(data: bytes, *, finite: bool = True) -> Any:
    """A JSON text in UTF-8, as plain objects; lone surrogates are refused, and so is NaN.

    Args:
        finite: False leaves it to the caller to say which number is none.

    Raises:
        ValueError: it is none, or nested more than 200 deep.
    """
    return from_json(data, allow_inf_nan=not finite)


def check_replaceable(given: str | None, kind: str, flag: str) -> None:
    """A file that a person names to be written is replaced only by its like.

    A slip of the finger must not cost a log, a trace or a device.

    Args:
        given: what they named, or None.
        kind: what the field of that name says in the files of this command.
        flag: with which they named it.

    Raises:
        UserError: something else is there.
    """

    def is_like(data: bytes) -> bool:
        found = parse_json(data)
        return isinstance(found, dict) and found.get("kind") == kind

    if given and not is_replaceable(Path(given), is_like):
        raise user_error("error.other_file", path=given, flag=flag)


def is_replaceable(path: Path, is_like: Callable[[bytes], bool]) -> bool:
    """Whether nothing is there, an empty file, or one whose bytes ``is_like`` accepts."""
    if not path.exists():
        return True
    with suppress(UserError, ValueError):
        if path.is_file():
            data = read_bounded(path, MAX_JSON_BYTES)
            return not data or is_like(data)
    return False


def log_lines(path: Path, *, own: bool = False) -> Iterator[bytes]:
    """Lines of an event log that hold anything, without their ends, as long as it is now.

    Args:
        own: this process wrote it, so that it may take what it takes.

    Raises:
        OSError: it cannot be read.
        UserError: it is no file, too large, or one of its lines is; or what came of its lines takes
            more memory than reading may.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # a pipe in its place would be waited for without end
        raise user_error("error.file_unreadable", path=str(path))
    if about.st_size > MAX_LOG_BYTES:
        raise user_error("error.file_too_large", path=str(path), limit=MAX_LOG_BYTES)
    room, left = None if own else Room(path), about.st_size
    with path.open("rb") as file:
        while line := file.readline(min(MAX_LINE_BYTES + 1, left)):
            left -= len(line)
            if len(line) > MAX_LINE_BYTES:
                raise user_error("error.file_too_large", path=str(path), limit=MAX_LINE_BYTES)
            if room is not None:
                room.make(line)
            if line.strip():
                yield line


@contextmanager
def evaluating(path: Path) -> Iterator[None]:
    """Evaluate what was read from ``path``; data that contradicts itself is no defect of ours.

    Raises:
        UserError: something in it does not fit together; where that showed is named. Or it takes
            more memory than reading may.
    """
    try:
        with memory_limit(path):
            yield
    except _CONTRADICTIONS as error:
        detail = cut(f"{type(error).__name__}: {error}", 160)
        text = " ".join(detail.split())
        place = _place(error)
        raise user_error("error.contradicts", path=str(path), detail=text, place=place) from error


def check_inside(root: Path, path: Path, *, opened: bool = False) -> Path:
    """``path``, where no symbolic link between ``root`` and it leads elsewhere.

    Args:
        root: a directory that a person named; it may be a link of theirs.
        path: what is to be written below it. The last part may be a link: it is replaced when the
            file is written, never followed.
        opened: the file, or the directory, is opened where it lies: it may be no link, either.

    Raises:
        OSError: ELOOP: a directory on the way is a link; its name is the error's.
    """
    parts = path.relative_to(root).parts
    if ".." in parts:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    for number in range(1, len(parts) + opened):
        way = root.joinpath(*parts[:number])
        if way.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(way))
    return path


def _place(error: BaseException) -> str:
    """Module and line in which it showed, for a report of a defect."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
