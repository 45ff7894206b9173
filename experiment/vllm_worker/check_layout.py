"""Lay out a planned cache: ``python -m experiment.vllm_worker.check_layout`` in vLLM's interpreter.

The task is that of :func:`experiment.vllm_worker.layouts.lay_out_model`; the result is one
LayoutFound event.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from experiment.events import LayoutFound
from experiment.files.parse_memory import memory_limit
from experiment.process.wire import Wire, exit_process, serve
from experiment.text.errors import ExitCode, UserError, cut
from experiment.text.messages import message
from experiment.vllm_worker.variables import prepare_variables

_VARIABLES = {
    "VLLM_TARGET_DEVICE": "cpu",  # a build for GPUs needs none for a layout
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",  # the plan has checked it, and configs may lack it
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}
_MOST_DETAIL = 70  # characters of vLLM's error


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Import vLLM, then build the model within a memory limit.

    Raises:
        UserError: this vLLM cannot build the model, or it takes too much memory.
    """
    prepare_variables("cpu")
    os.environ.update(_VARIABLES)
    _stand_in()
    from vllm import __version__

    from experiment.vllm_worker.layouts import lay_out_model, one_process

    name = task.pop("name")
    with tempfile.TemporaryDirectory() as place, one_process(), memory_limit(name):
        found = lay_out_model(task, place)
    if "failed" in found:
        detail = cut(" ".join(found["failed"].split()), _MOST_DETAIL)
        text = message("plan.check.not_built", version=__version__, detail=detail)
        raise UserError(text, ExitCode.INCOMPLETE)
    wire.emit(
        LayoutFound(
            vllm=__version__,
            refused=found.get("refused"),
            groups=sorted(map(len, found.get("groups", ()))),
            blocks=found.get("blocks", 0),
            tokens=found.get("tokens", 0),
            concurrency=found.get("concurrency", 0),
        )
    )


def _stand_in() -> None:
    """Stand in for absent libraries, also in the processes in which vLLM inspects classes."""
    from experiment.vllm_worker.absent import sitecustomize

    paths = (str(Path(sitecustomize.__file__).parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


if __name__ == "__main__":
    exit_process(serve("check", main))
