"""Known amounts of memory as each channel sees them: the checks of ``selfcheck``.

The cost of sampling is reported and not judged: other programs raise it, and it says nothing of the
engine.
"""

from __future__ import annotations

import sys

from experiment.gpucheck.made_up_nvml import check_made_up
from experiment.gpucheck.parts import Task
from experiment.process.wire import Wire
from experiment.selfcheck.checks import all_checks, scratch_directory

_COST = "sampler.cost."


def check(wire: Wire, task: Task) -> None:
    """Run the checks of ``selfcheck``, on the CPU and on a GPU that is there, else made up."""
    if not task.on_gpu:
        check_made_up(wire)
    with scratch_directory() as scratch:
        log = scratch / "selfcheck.log"
        try:
            for each in all_checks(log):
                is_cost = each.check.startswith(_COST)
                wire.emit(each.model_copy(update={"passed": None}) if is_cost else each)
        finally:
            if log.exists():  # into the log of this part
                sys.stderr.write(log.read_text(encoding="utf-8", errors="replace"))
