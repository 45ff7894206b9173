"""The worker: ``python -m experiment.vllm_worker`` in an interpreter with vLLM."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from experiment.events import ArmStarted
from experiment.machine.thread_record import thread_facts, usable_cores
from experiment.process.wire import Wire, is_out_of_memory, serve
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from experiment.text.redaction import without_private
from experiment.vllm_worker.failures import explain
from experiment.vllm_worker.task import VllmTask
from experiment.vllm_worker.variables import prepare_variables


def main(wire: Wire, data: dict[str, Any]) -> None:
    """Import vLLM, then run the arm.

    Raises:
        UserError: vLLM failed, with its reason.
        MemoryError: vLLM ran out of memory.
    """
    task = VllmTask.model_validate(data)
    prepare_variables(task.device)
    wire.emit(
        ArmStarted(arm=task.arm, pid=os.getpid(), variables=thread_facts(), cores=usable_cores())
    )
    begin = time.monotonic()
    try:
        from experiment.vllm_worker.arm import run

        run(wire, task, time.monotonic() - begin)
    except (UserError, EOFError, BrokenPipeError, KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        traceback.print_exc()
        why = explain(error, Path(task.log) if task.log else None)
        if why is None:
            gone = message("failure.engine_process")
            raise UserError(gone, ExitCode.INCOMPLETE) from error
        if is_out_of_memory(why):
            raise MemoryError(why) from error
        reason = message("failure.exception", error=without_private(why)[:500])
        raise UserError(reason, ExitCode.INCOMPLETE) from error


if __name__ == "__main__":
    sys.exit(serve("vllm", main))
