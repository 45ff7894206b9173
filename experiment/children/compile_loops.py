"""Compile the engine's loops: ``python -m experiment.children.compile_loops``.

Started during the preparation if there is no compiled code; the arms load it from the cache.
"""

from __future__ import annotations

import traceback
from typing import Any

from experiment.process.wire import Wire, exit_process, serve


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Do nothing: the task only ends the process."""


def libraries() -> None:
    """Compile the engine's CPU loops; an arm that needs them reports a failure."""
    try:
        from experiment.engine.attention.kernels import cpu_kernel_module, few_rows_module

        cpu_kernel_module()
        few_rows_module()
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    exit_process(serve("loops", main, libraries))
