"""Output directories of commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from experiment.files.locks import directory_lock, is_locked
from experiment.files.os_errors import writing
from experiment.record.log import EVENTS_FILE
from experiment.text.errors import user_error


def default_directory(prefix: str = "", within: Path = Path("reports")) -> Path:
    """Default output directory, named after the present time; it is not created."""
    return within / (prefix + datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"))


def make_run_directory(out: Path | None, prefix: str = "") -> Path:
    """Create the directory of a run: ``out``, or one named after the time under ``reports/``.

    Raises:
        UserError: ``out`` already holds a run, or cannot be created.
    """
    path = out or default_directory(prefix)
    with writing(path):
        if out is None:
            return _new_directory(path)
        path.mkdir(parents=True, exist_ok=True)
        _check_empty(path)
    return path


@contextmanager
def run_directory(out: Path | None, prefix: str = "") -> Iterator[Path]:
    """Create the directory of a run and lock it in the block.

    If an error leaves a new directory empty, it is removed.

    Raises:
        UserError: as :func:`make_run_directory`, or another process holds the lock.
    """
    is_new = out is None or not _exists(out)
    path = make_run_directory(out, prefix)
    with directory_lock(path):
        with writing(path):
            _check_empty(path)  # of two that begin at once the second one sees what the first wrote
        with _kept_if_filled(path, is_new):
            yield path


@contextmanager
def shared_directory(path: Path) -> Iterator[None]:
    """Create a directory if necessary, and lock it in the block.

    If an error leaves a new directory empty, it is removed.

    Raises:
        UserError: it cannot be created, or another process holds the lock.
    """
    is_new = not _exists(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    with directory_lock(path), _kept_if_filled(path, is_new):
        yield


@contextmanager
def _kept_if_filled(path: Path, is_new: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                path.rmdir()  # fails if anything was written
        raise


def _exists(path: Path) -> bool:
    with writing(path):
        return path.exists()


def _check_empty(path: Path) -> None:
    if any(path.iterdir()):
        if is_locked(path) or is_locked(path / EVENTS_FILE):
            raise user_error("error.run_in_use", path=str(path))
        raise user_error("error.out_not_empty", path=str(path))


def _new_directory(path: Path) -> Path:
    """Create a directory with a unique name, even if several runs start in the same second."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            path = path.with_name(path.name + "x")
        else:
            return path
