"""Why the operating system refused something, as a message in the user's language."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiment.messages import message, user_error

_KNOWN = (
    "EACCES",
    "EEXIST",
    "EFBIG",
    "EISDIR",
    "ELOOP",
    "ENAMETOOLONG",
    "ENOENT",
    "ENOSPC",
    "ENOTDIR",
    "EPERM",
    "EROFS",
)


def os_reason(error: OSError) -> dict[str, Any]:
    """The reason, to be nested in another message; an unknown one is named by its code."""
    name = errno.errorcode.get(error.errno or 0, "")
    if name in _KNOWN:
        return message(f"error.os.{name}").model_dump()
    return message("error.os.other", code=name or type(error).__name__).model_dump()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What is written into ``path``, or to it; a disk that takes no more is no defect of ours.

    Raises:
        UserError: it cannot be written to, and why.
    """
    try:
        yield
    except OSError as error:
        why = os_reason(error)
        raise user_error("error.out_unwritable", path=str(path), why=why) from error
