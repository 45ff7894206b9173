"""A part that says where its home is, whose it is, and a token of a service."""

from __future__ import annotations

import sys
from pathlib import Path

from experiment.gpucheck.parts import Task, report
from experiment.process.wire import Wire

TOKEN = "hf_" + "Abc1" * 6


def check(wire: Wire, task: Task) -> None:
    home = Path.home()
    told = f"{home}/models of {home.name} with {TOKEN}"
    print(told, file=sys.stderr)
    report(wire, "told", True, "gpucheck.machine.variable", name="PYTORCH_ALLOC_CONF", value=told)
    logs = task.directory / "walkthrough" / "logs"
    logs.mkdir(parents=True)
    (logs / "paged.log").write_text(told, encoding="utf-8")  # nobody has cleaned this one
