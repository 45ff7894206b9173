"""The process of one arm: ``python -m experiment.arms``, started by the runner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from experiment.events import ArmStarted
from experiment.machine.thread_record import thread_facts, usable_cores
from experiment.process.wire import Wire, exit_process, serve
from experiment.text.errors import unknown


def libraries() -> None:
    """Import the libraries of all arms."""
    import torch  # noqa: F401

    from experiment.arms import functions  # noqa: F401


def main(wire: Wire, task_data: dict[str, Any]) -> None:
    """Run the arm.

    Raises:
        UserError: there is no such arm.
    """
    import torch

    from experiment.arms.base import ArmRun
    from experiment.arms.functions import FUNCTIONS
    from experiment.arms.task import ArmTask
    from experiment.memory.cuda_history import cuda_history

    task = ArmTask.model_validate(task_data)
    if task.config.run.threads:
        torch.set_num_threads(task.config.run.threads)
    torch.manual_seed(task.config.run.seed)
    if task.arm not in FUNCTIONS:
        raise unknown("arm", task.arm, FUNCTIONS)
    run = ArmRun(wire, task, import_s=wire.import_s)
    run.emit(
        ArmStarted(arm=task.arm, pid=os.getpid(), variables=thread_facts(), cores=usable_cores())
    )
    history = None
    if task.config.run.cuda_history and task.logs and task.device.startswith("cuda"):
        history = Path(task.logs, f"{task.arm}.cuda_history.pickle")
    with cuda_history(history, run.emit):
        FUNCTIONS[task.arm](run)


if __name__ == "__main__":
    exit_process(serve("arm", main, libraries))
