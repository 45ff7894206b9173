"""Bounded reading of untrusted files.

A run directory, trace or config may come from anywhere. It must not cause unbounded reading, writes
outside the given directory, or a traceback.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from experiment.files.os_errors import FilesError
from experiment.files.parse_memory import PLAIN_COSTS, ParseBudget, memory_budget, memory_limit
from experiment.text.errors import UserError, cut, user_error
from experiment.text.personal_names import expand_names

# Parsed JSON may take over 20 times its bytes in Python; this keeps it below 1 GiB.
MAX_JSON_BYTES = 32 << 20
# One line of an event log can hold the prompts and token ids of a whole workload.
MAX_LINE_BYTES = 128 << 20
MAX_LOG_BYTES = 4 << 30
# Raised by evaluating data that contradicts itself.
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
# Of a file in JSON, also below the first conflict marker of a merge.
_BEGIN = rb'(?:<{7}[^\n]*\n)?\s*\{\s*"kind":\s*"%s"'
_TEMPLATES = "jinja2.exceptions"  # a template met something else than it expects


def expand_path(text: str) -> Path:
    """Expand a path of the user or of a record: ``~`` and placeholders of names."""
    path = Path(expand_names(text))
    try:
        return path.expanduser()
    except RuntimeError:  # unknown user or no home: the path is then reported as missing
        return path


def file_name(path: Path) -> str:
    """File name as text; bytes that are not UTF-8 become replacement characters."""
    return os.fsencode(path.name).decode("utf-8", errors="replace")


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file that is parsed as a whole.

    Raises:
        UserError: as :func:`read_bytes`, or parsing it would exceed the memory limit (see
            :mod:`experiment.files.parse_memory`).
    """
    data = read_bytes(path, limit)
    ParseBudget(path).reserve(data, PLAIN_COSTS)
    return data


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a file.

    Raises:
        UserError: the file is missing, unreadable or larger than ``limit`` bytes.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise user_error("error.file_missing", path=str(path)) from error
    except (OSError, ValueError) as error:  # a null byte in the name raises ValueError
        raise user_error("error.file_unreadable", path=str(path)) from error
    if len(data) > limit:
        raise user_error("error.file_too_large", path=str(path), limit=limit)
    return data


def parse_json(data: bytes, *, finite: bool = True) -> Any:
    """Parse JSON in UTF-8 to plain objects; lone surrogates and NaN are refused.

    Args:
        finite: False accepts NaN and infinity; the caller checks them.

    Raises:
        ValueError: not JSON, or nested deeper than 200.
    """
    return from_json(data, allow_inf_nan=not finite)


def check_replaceable(given: str | None, kind: str, flag: str) -> None:
    """Refuse to overwrite a file that this command did not write.

    A damaged file of the kind, truncated or with conflict markers, may be replaced.

    Args:
        given: path of the output file, or None.
        kind: value of the field ``kind`` in files of this command.
        flag: the option that named the file.

    Raises:
        UserError: the path holds something else.
    """

    def is_like(data: bytes) -> bool:
        try:
            found = parse_json(data)
        except ValueError:
            return re.match(_BEGIN % re.escape(kind).encode(), data) is not None
        return isinstance(found, dict) and found.get("kind") == kind

    if given and not is_replaceable(Path(given), is_like):
        raise user_error("error.other_file", path=given, flag=flag)


def is_replaceable(path: Path, is_like: Callable[[bytes], bool]) -> bool:
    """Whether the path is free, an empty file, or a file that ``is_like`` accepts."""
    if not path.exists():
        return True
    with suppress(UserError, ValueError):
        if path.is_file():
            data = read_bounded(path, MAX_JSON_BYTES)
            return not data or is_like(data)
    return False


def log_lines(path: Path, *, own: bool = False) -> Iterator[bytes]:
    """Yield the non-empty lines of an event log, up to its present size.

    Args:
        own: this process wrote the log; do not limit the memory.

    Raises:
        OSError: the log cannot be read.
        UserError: not a regular file, the file or a line is too large, or parsing would exceed the
            memory limit.
    """
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # reading a pipe would block forever
        raise user_error("error.file_unreadable", path=str(path))
    if about.st_size > MAX_LOG_BYTES:
        raise user_error("error.file_too_large", path=str(path), limit=MAX_LOG_BYTES)
    budget, left = None if own else ParseBudget(path), about.st_size
    with path.open("rb") as file:
        while line := file.readline(min(MAX_LINE_BYTES + 1, left)):
            left -= len(line)
            if len(line) > MAX_LINE_BYTES:
                raise user_error("error.file_too_large", path=str(path), limit=MAX_LINE_BYTES)
            if budget is not None:
                budget.reserve(line)
            if line.strip():
                yield line


@contextmanager
def evaluating(path: Path | str) -> Iterator[None]:
    """Evaluate data read from ``path``, or several names; report contradictions as a user error.

    Raises:
        UserError: the data contradicts itself (the message names the place), also where a file
            could not be made of it, or evaluating it exceeds the memory limit.
    """
    try:
        with memory_limit(path):
            yield
    except UserError as error:
        files = error.__cause__
        flaw = files.flaw if isinstance(files, FilesError) else None
        if flaw is None:
            raise
        if isinstance(flaw, MemoryError):
            raise user_error("error.memory", path=str(path), limit=memory_budget()) from flaw
        raise _contradicts(path, flaw) from flaw
    except Exception as error:
        if not isinstance(error, _CONTRADICTIONS) and type(error).__module__ != _TEMPLATES:
            raise
        raise _contradicts(path, error) from error


def _contradicts(path: Path | str, error: Exception) -> UserError:
    detail = " ".join(cut(f"{type(error).__name__}: {error}", 160).split())
    return user_error("error.contradicts", path=str(path), detail=detail, place=_place(error))


def check_inside(root: Path, path: Path, *, opened: bool = False) -> Path:
    """Return ``path`` if no symbolic link between ``root`` and it leads elsewhere.

    Args:
        root: a directory named by the user; it may itself be a link.
        path: the file to write below it. Its last component may be a link: writing replaces the
            link and does not follow it.
        opened: the file or directory is opened in place, so that it may not be a link either.

    Raises:
        OSError: ELOOP: a directory on the way is a link; its name is in the error.
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
    """Module and line where the error was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
