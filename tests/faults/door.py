"""The program as a person starts it, with arms that take no seconds to load: ``python door.py``.

Command line, walkthrough, runner, child processes, record and reports are the real ones. What the
probe and the preparation would find is read from a file, and an arm's process is scripted_arm.

Usage: ``door.py TOLD.json WORDS...``
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE.parent), str(HERE)]

import event_makers  # noqa: E402
import jinja2  # noqa: E402

from experiment.arms.launch import Launch  # noqa: E402
from experiment.commands.main import main  # noqa: E402
from experiment.events import EnvironmentProbed  # noqa: E402
from experiment.machine import background_load as noise  # noqa: E402
from experiment.machine import thread_variables  # noqa: E402
from experiment.machine.environment import Environment  # noqa: E402
from experiment.measure import run as measuring  # noqa: E402
from experiment.memory import settle  # noqa: E402
from experiment.report.files import write as files  # noqa: E402
from experiment.runner import session as runner  # noqa: E402
from experiment.workload.prepared import Prepared  # noqa: E402


def arrange(told: dict[str, Any]) -> None:
    """Put what was told in the place of what takes seconds."""

    def stop_in(session: runner.Session, stage: str) -> None:
        """Hang in a process of this stage where that was told."""
        if told["hang_in"] == stage:
            session._run(stage, "scripted_arm", {"arm": stage, "script": "hang at once"}, 600, None)

    def probe(session: runner.Session, _: str, cores: float | None = None) -> Environment:
        load = told["environment"]["load"] | {"others_cores": cores}
        found = told["environment"] | {"load": load}
        session.emit(EnvironmentProbed(environment=found))
        return Environment.model_validate(found)

    def prepare(session: runner.Session, *_: object) -> Prepared:
        stop_in(session, "prepare")
        _, model, workload = event_makers.head()
        model = model.model_copy(update=told["model"])
        session.emit(model)
        session.emit(workload)
        return Prepared("nowhere", model, workload)  # type: ignore[arg-type]

    def prepare_cells(
        session: runner.Session, cells: list[object], *_: object
    ) -> list[runner.PreparedCell]:
        stop_in(session, "prepare")
        _, model, workload = event_makers.head()
        given = Prepared("nowhere", model, workload)  # type: ignore[arg-type]
        return [runner.PreparedCell(given, {}) for _ in cells]

    def plan(arm: str, *_: object) -> Launch:
        script = told["scripts"].get(arm, "")
        task = {"arm": arm, "script": script, "pause_s": told["pause_s"], "note": told["note"]}
        return Launch("scripted_arm", task)

    def raises(method: str) -> None:
        """Send SIGTERM to ourselves in the middle of a method."""
        wanted = getattr(runner.Session, method)

        def and_ends(session: runner.Session, *words: object) -> object:
            signal.raise_signal(signal.SIGTERM)
            return wanted(session, *words)

        setattr(runner.Session, method, and_ends)

    if told["hang_in"] == "between":
        measuring._gate = lambda *_: time.sleep(600)

    if told["signal_in"]:
        raises({"the first line": "emit", "the last process": "close"}[told["signal_in"]])
    files.draw_plots = lambda *_: iter(())  # type: ignore[assignment] # seconds for each run
    measuring._import_late = lambda: None
    kept = jinja2.FileSystemBytecodeCache(os.environ["PAGEDKV_CACHE"])
    jinja2.Environment = partial(jinja2.Environment, bytecode_cache=kept)  # type: ignore[misc, assignment]
    runner.has_background_load = thread_variables.has_background_load = lambda: False  # type: ignore[assignment]
    settle.PAUSE_S, settle.LIMIT_S = 0.01, 0.1
    runner.Session._start_ahead = lambda *_: None  # type: ignore[method-assign]
    runner.Session.probe_environment = probe  # type: ignore[method-assign]
    runner.Session.prepare = prepare  # type: ignore[method-assign, assignment]
    runner.Session.prepare_cells = prepare_cells  # type: ignore[method-assign, assignment]
    runner.Session.measure_limits = lambda *_: None  # type: ignore[method-assign, assignment]
    runner.plan_launch = plan  # type: ignore[assignment]

    cores = told["others"]  # that are kept busy, look by look; the last one stays
    noise.others_cores = lambda: cores.pop(0) if len(cores) > 1 else cores[0]


def make_the_clock_jump() -> None:
    """The wall clock goes a day back each time that it is read; the monotonic one does not."""
    days = itertools.count()
    now = time.time_ns
    time.time_ns = lambda: now() - next(days) * 86_400 * 10**9
    time.time = lambda: time.time_ns() / 1e9


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    arrange(given)
    if given["clock_jumps"]:
        make_the_clock_jump()
    sys.exit(main(sys.argv[2:]))
