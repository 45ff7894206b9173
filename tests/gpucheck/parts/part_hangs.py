"""A part that reports one check and never ends."""

from __future__ import annotations

import time

from experiment.gpucheck.parts import Task, report
from experiment.process.wire import Wire


def check(wire: Wire, task: Task) -> None:
    report(wire, "begun", True, "gpucheck.machine.headers")
    time.sleep(10_000)
