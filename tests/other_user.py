"""A command as a user who may read whatever there is and write only what is theirs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

OTHER = 54321  # a number that no system gives to anybody


def as_other_user(*words: str) -> list[str]:
    """The words of that command; where the tests have no rights of root, as they are."""
    if os.geteuid():
        return list(words)
    program = shutil.which("setpriv")
    if program is None:
        pytest.skip("there is no setpriv, which starts a command as another user")
    kept = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    return [program, f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", *kept, *words]


@pytest.fixture
def place_for_others() -> Iterator[Path]:
    """A directory that others can enter, which those of pytest are not; ``open`` is theirs, too."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        (Path(made) / "open").mkdir()
        (Path(made) / "open").chmod(0o777)
        yield Path(made)
