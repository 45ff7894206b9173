"""Find the cause of a vLLM failure, which may be in another process's log lines."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"(?:^|\s)((?:[A-Za-z_]+\.)*[A-Za-z_]*(?:Error|Exception)): (\S.*)$")
_HIDDEN = (
    "see stack trace", "check the stack trace above", "see root cause above", "background process",
    "executor failed", "error: cancelled",
)  # fmt: skip
_TAIL_BYTES = 200_000


def explain(error: BaseException, log: Path | None) -> str | None:
    """The error in one line; if it only refers to the log, the first error there.

    None if the log has no other error: a process ended without a message.
    """
    text = f"{type(error).__name__}: {error}"
    if not any(hint in text.lower() for hint in _HIDDEN):
        return text
    lines = _tail(log) if log is not None else ""
    return root_cause(lines) if lines else text


def root_cause(log: str) -> str | None:
    """The first error of a log that does not refer to another place."""
    for line in log.splitlines():
        found = _LINE.search(line)
        if found and not any(hint in line.lower() for hint in _HIDDEN):
            return f"{found[1].rpartition('.')[2]}: {found[2]}"
    return None


def _tail(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
