"""The process of one arm: ``python -m experiment.arms``, started by the runner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiment.process.wire import Wire, exit_process, serve
from experiment.text.errors import unknown

if TYPE_CHECKING:
    from experiment.arms.task import ArmTask


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
    run.emit_started(os.getpid())
    with cuda_history(_history_path(task), run.emit):
        FUNCTIONS[task.arm](run)


def _history_path(task: ArmTask) -> Path | None:
    if not (task.config.run.cuda_history and task.logs and task.device.startswith("cuda")):
        return None
    return Path(task.logs, f"{task.arm}.cuda_history.pickle")


if __name__ == "__main__":
    exit_process(serve("arm", main, libraries))
