"""A part whose process dies by a signal."""

from __future__ import annotations

import os
import signal

from experiment.gpucheck.parts import Task
from experiment.process.wire import Wire


def check(wire: Wire, task: Task) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
