"""Why the operating system refused something, as a message in the user's language."""

from __future__ import annotations

import errno
from typing import Any

from experiment.messages import message

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
