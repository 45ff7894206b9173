"""Compare known amounts of memory with each channel's reading: the checks of ``selfcheck``.

The cost of sampling is reported without a verdict: it depends on background load, not on the
engine.
"""

from __future__ import annotations

import sys

from experiment.gpucheck.parts import Task
from experiment.process.scratch_directory import scratch_directory
from experiment.process.wire import Wire
from experiment.selfcheck.checks import all_checks

_COST = "sampler.cost."


def check(wire: Wire, task: Task) -> None:
    """Run the checks of ``selfcheck``; they fail where the GPU of the task cannot be used."""
    with scratch_directory() as scratch:
        log = scratch / "selfcheck.log"
        try:
            for each in all_checks(log, "cuda" if task.on_gpu else "auto"):
                is_cost = each.check.startswith(_COST)
                wire.emit(each.model_copy(update={"passed": None}) if is_cost else each)
        finally:
            if log.exists():  # include it in this part's log
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
