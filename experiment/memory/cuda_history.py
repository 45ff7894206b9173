"""Torch's own record of every CUDA allocation of an arm, as a file for its memory viewer.

The file is a pickle: this program writes it and never reads it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiment.events import Event, Notice
from experiment.text.messages import message

# Each entry holds a stack; the oldest are dropped beyond this many.
MAX_ENTRIES = 200_000


@contextmanager
def cuda_history(path: Path | None, emit: Callable[[Event], None]) -> Iterator[None]:
    """Record while the block runs and save a snapshot at its end, also when it fails.

    ``path`` None does nothing. A snapshot that cannot be saved is a notice and no failure.
    """
    if path is None:
        yield
        return
    # Imported as a module object: torch leaves these functions without types.
    torch: Any = importlib.import_module("torch")
    torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES)
    try:
        yield
    finally:
        try:
            torch.cuda.memory._dump_snapshot(str(path))
        except (OSError, RuntimeError) as error:
            emit(Notice(text=message("usage.history_failed", detail=type(error).__name__)))
        torch.cuda.memory._record_memory_history(enabled=None)
