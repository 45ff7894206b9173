"""Known amounts of memory as each channel sees them: the checks of ``selfcheck``."""

from __future__ import annotations

import sys

from experiment.gpucheck.parts import Task
from experiment.selfcheck import all_checks, scratch_directory
from experiment.wire import Wire


def check(wire: Wire, task: Task) -> None:  # noqa: ARG001 - every part is given one
    """Run the checks of ``selfcheck``, on the CPU and on a GPU that is there."""
    with scratch_directory() as scratch:
        log = scratch / "selfcheck.log"
        try:
            for each in all_checks(log):
                wire.emit(each)
        finally:
            if log.exists():  # into the log of this part
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
