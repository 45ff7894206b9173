"""The process of one arm: ``python -m experiment.arms``, started by the runner."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from experiment.messages import user_error
from experiment.wire import Wire, serve


def main(wire: Wire, task_data: dict[str, Any]) -> None:
    """Import what the arm needs, then run it."""
    begin = time.monotonic()
    import torch

    from experiment.arms.base import ArmRun, ArmTask
    from experiment.arms.registry import ARMS

    task = ArmTask.model_validate(task_data)
    if task.config.run.threads:
        torch.set_num_threads(task.config.run.threads)
    torch.manual_seed(task.config.run.seed)
    if task.arm not in ARMS:
        raise user_error("error.unknown_arm", arm=task.arm, choices=", ".join(ARMS))
    run = ArmRun(wire, task, import_s=time.monotonic() - begin)
    run.emit_started(os.getpid())
    ARMS[task.arm](run)


if __name__ == "__main__":
    sys.exit(serve("arm", main))
