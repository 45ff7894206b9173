"""Compiles the engine's loops: ``python -m experiment.children.compile_loops``.

It is started while a run is prepared, where no compiled code is kept yet; the arms read it back.
"""

from __future__ import annotations

import traceback
from typing import Any

from experiment.process.wire import Wire, leave, serve


def main(wire: Wire, task: dict[str, Any]) -> None:
    """Nothing is left to do: the task tells it to end."""


def libraries() -> None:
    """Compile what the engine calls on a CPU; an arm that needs what failed here will say why."""
    try:
        from experiment.engine.attention.kernels import compile_loops

        compile_loops()
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    leave(serve("loops", main, libraries))
