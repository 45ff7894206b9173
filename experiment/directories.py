"""The directory of a run, and what of a person's own paths may stand in a record."""

from __future__ import annotations

import contextlib
from datetime import datetime
from pathlib import Path

from experiment.locks import is_locked
from experiment.messages import user_error
from experiment.os_errors import os_reason
from experiment.record import EVENTS_FILE


def place_of_now(prefix: str = "", within: Path = Path("reports")) -> Path:
    """Where what begins now is written unless somebody names a place; nothing is made."""
    return within / (prefix + datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"))


def make_run_directory(out: Path | None, prefix: str = "") -> Path:
    """Create the directory of a run: ``out``, or one named after the time under ``reports/``.

    Raises:
        UserError: ``out`` holds a run already, or cannot be created.
    """
    path = out or place_of_now(prefix)
    try:
        if out is None:
            return _new_directory(path)
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            if is_locked(path / EVENTS_FILE):
                raise user_error("error.run_in_use", path=str(path))
            raise user_error("error.out_not_empty", path=str(path))
    except OSError as error:
        raise user_error("error.out_unwritable", path=str(path), why=os_reason(error)) from error
    return path


def _new_directory(path: Path) -> Path:
    """Create a directory that nobody else has, though several runs begin in the same second."""
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            path = path.with_name(path.name + "x")
        else:
            return path


def without_home(text: str) -> str:
    """A record may be sent on: it keeps no path of the person's home."""
    with contextlib.suppress(RuntimeError):
        return text.replace(str(Path.home()), "~")
    return text
