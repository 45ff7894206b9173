"""Errors of the operating system as messages."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message

_KNOWN = (
    "EACCES",
    "EDQUOT",
    "EEXIST",
    "EFBIG",
    "EILSEQ",
    "EIO",
    "EISDIR",
    "ELOOP",
    "EMFILE",
    "ENAMETOOLONG",
    "ENFILE",
    "ENOENT",
    "ENOSPC",
    "ENOTDIR",
    "EPERM",
    "EROFS",
    "ESPIPE",
)


class FilesError(OSError):
    """Some of several files could not be written; the others were.

    Attributes:
        written: files that are there.
        failures: name of each file that is not, and why.
    """

    def __init__(self, written: list[Path], failures: list[tuple[str, Exception]]) -> None:
        reasons = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failures)
        super().__init__(reasons)
        self.written = written
        self.failures = failures

    @property
    def flaw(self) -> Exception | None:
        """The first failure to make a file, as opposed to writing it."""
        errors = (error for _, error in self.failures)
        return next((error for error in errors if not isinstance(error, OSError)), None)

    def reason(self) -> Message:
        """Which files, and why; files with one reason are named together."""
        groups: dict[str, tuple[list[str], Message]] = {}
        for name, error in self.failures:
            why = _why(error)
            groups.setdefault(why.model_dump_json(), ([], why))[0].append(name)
        parts = [
            message("error.files_because", files=", ".join(names), why=why.model_dump())
            for names, why in groups.values()
        ]
        return reduce(
            lambda one, two: message("error.both", one=one.model_dump(), two=two.model_dump()),
            parts,
        )


def _why(error: Exception) -> Message:
    """A reason of the system in the user's language; a library's own words as they are."""
    if isinstance(error, OSError) and error.errno:
        return Message.model_validate(os_reason(error))
    return message("error.words", name=type(error).__name__, text=" ".join(str(error).split()))


def unwritable(path: Path, error: OSError, exit_code: int = ExitCode.UNWRITABLE) -> UserError:
    """A directory or file can no longer be written, and results are lost."""
    text = message("error.out_unwritable", path=str(path), why=os_reason(error))
    return UserError(text, exit_code)


def os_reason(error: OSError) -> dict[str, Any]:
    """The reason, to be nested in another message; an unknown one is named by its code."""
    if isinstance(error, FilesError):
        return error.reason().model_dump()
    name = errno.errorcode.get(error.errno or 0, "")
    if name in _KNOWN:
        return message(f"error.os.{name}").model_dump()
    return message("error.os.other", code=name or type(error).__name__).model_dump()


@contextmanager
def writing(path: Path, exit_code: int = ExitCode.USAGE) -> Iterator[None]:
    """Report failures to write ``path`` as user errors.

    Args:
        path: as shown to the user.
        exit_code: ``USAGE`` if the user must name another path, ``UNWRITABLE`` if results are lost.

    Raises:
        UserError: the path cannot be written, and why.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error, exit_code) from error


# Windows has no EDQUOT.
_DISK_ERRORS = {errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, "EDQUOT", errno.ENOSPC)}
# For files in a directory: it was removed, or its permissions changed.
_PLACE_ERRORS = {errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR}


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Report disk errors of a long task that writes into ``directory``.

    Raises:
        UserError: the disk is full, or the directory can no longer be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS and not _is_of(directory, error):
            raise
        raise unwritable(directory, error) from error


def _is_of(directory: Path, error: OSError) -> bool:
    """Whether the error is that a file in the directory is no longer accessible."""
    name = error.filename
    return (
        error.errno in _PLACE_ERRORS
        and isinstance(name, str)
        and Path(name).absolute().is_relative_to(directory.absolute())
    )
