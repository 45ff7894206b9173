"""An arm without torch that does what it is told; run as ``python -m scripted_arm``.

It says what :mod:`event_makers` says of the arm, with a pause between its steps, so that there is
a middle to break it in.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import event_makers

from experiment.events import ArmStarted, Event, PoolReserved, Stage, StageEntered, Step
from experiment.process.wire import Wire, serve
from experiment.text.errors import user_error

_KEPT: list[SharedMemory] = []


def events(arm: str) -> list[Event]:
    return event_makers.paged_arm() if arm == "paged" else event_makers.batch_arm(arm)


def main(wire: Wire, task: dict[str, Any]) -> None:
    arm, script = task["arm"], task["script"]
    if script == "hang at once":
        wire.emit(ArmStarted(arm=arm, pid=os.getpid()))
        time.sleep(600)
    if script == "ignore being asked to end":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script.startswith("start others"):
        Path(task["note"]).write_text(json.dumps(start_others()), encoding="utf-8")
    for event in events(arm):
        if isinstance(event, ArmStarted):
            wire.emit(event.model_copy(update={"pid": os.getpid()}))
            wire.mark(StageEntered(arm=arm, stage=Stage.START))
            continue
        wire.emit(event)
        if isinstance(event, PoolReserved):
            wire.mark(StageEntered(arm=arm, stage=Stage.CACHE_READY))
        if isinstance(event, Step):
            time.sleep(task["pause_s"])
            act(script)


def start_others() -> dict[str, Any]:
    """Processes in our session and in one of their own, and memory that nobody gives back."""
    _KEPT.append(SharedMemory(create=True, size=1 << 20))
    resource_tracker.unregister(f"/{_KEPT[0].name}", "shared_memory")
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    words = [sys.executable, "-c", deaf]
    others = [subprocess.Popen(words, start_new_session=alone) for alone in (False, True)]
    return {"pids": [other.pid for other in others], "shared": _KEPT[0].name}


def act(script: str) -> None:
    """Go wrong after a step, in the way that the script names."""
    if script.endswith("be killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if script == "run out of GPU memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if script == "refuse its model":
        raise user_error("error.model_logits", model="tiny", dtype="float16")
    if script in ("hang", "start others", "ignore being asked to end"):
        time.sleep(600)


if __name__ == "__main__":
    sys.exit(serve("scripted", main))
