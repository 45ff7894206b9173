"""A directory for the log and the files of a child process, removed with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiment.files.os_errors import os_reason
from experiment.files.scratch import remove_scratch
from experiment.process.interrupts import shielded
from experiment.process.process_tree import OrphanReaper, new_mark
from experiment.text.errors import user_error


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory among the temporary files; it is removed even if this process is killed.

    Raises:
        UserError: it cannot be made.
    """
    made: Path | None = None
    guard: OrphanReaper | None = None
    try:
        with shielded():
            try:
                made = Path(tempfile.mkdtemp(prefix="pagedkv-"))
                guard = OrphanReaper(new_mark(), made)
            except OSError as error:
                raise user_error("error.no_scratch", why=os_reason(error)) from error
        yield made
    finally:
        with shielded():
            remove_scratch(made)
            if guard is not None:
                guard.release()
