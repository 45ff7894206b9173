"""Record torch's CUDA allocation history of an arm to a file for its memory viewer.

The file is a pickle, which this program never reads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiment.events import Event, Notice
from experiment.text.messages import message

# Each entry holds a stack; older ones are dropped.
MAX_ENTRIES = 200_000


@contextmanager
def cuda_history(path: Path | None, emit: Callable[[Event], None]) -> Iterator[None]:
    """Record in the block and save a snapshot at its end, also after a failure.

    ``path`` None disables it. If saving fails, a notice is emitted.
    """
    if path is None:
        yield
        return
    # Imported dynamically: torch has no types for these functions.
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
