"""One process per stage: start it, watch its memory, write down what it says, end it.

The session is the only writer of the record. Whatever an arm emitted before it died stands.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiment.arms.launch import ARM, VLLM, Launch, plan_launch
from experiment.config.kv_dtype import ENGINE_ARMS
from experiment.config.schema import Config
from experiment.events import (
    TRANSIENT,
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    CellPrepared,
    EnvironmentProbed,
    Event,
    MachineLimits,
    ModelDirectory,
    ModelPrepared,
    Notice,
    Progress,
    StageEntered,
    TurnAwaited,
    TurnStarted,
    WorkloadReady,
)
from experiment.files import code_cache as compiled_cache
from experiment.files.user_cache import cache_notice
from experiment.machine.environment import Environment
from experiment.machine.thread_variables import crowded, thread_variables
from experiment.memory.monitor import Monitor
from experiment.memory.settle import DeviceWatch
from experiment.process.child import Child, ChildStartError, ChildTimeoutError
from experiment.process.child_end import ChildEnd, end_reason
from experiment.process.environment import hub_secrets
from experiment.process.interrupts import shielded
from experiment.record.log import EventLog
from experiment.runner.interleave import Course, alone
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message
from experiment.workload.prepared import Prepared

Listener = Callable[[Event], None]
PREPARATION = "experiment.children.prepare"
LOOPS = ("loops", "experiment.children.compile_loops")
_AS_GIVEN: Any = {"mode": "json", "exclude_unset": True}  # the preparation chooses what is unset
_PREPARE_TIMEOUT_S, _PROBE_TIMEOUT_S = 4 * 3600.0, 300.0  # a large model over a slow line


@dataclass(frozen=True, slots=True)
class PreparedCell:
    """What a cell's arms are given; ``refused`` are those that could not work within it."""

    prepared: Prepared
    refused: dict[str, Message]


class Session:
    """A run in progress: its log, its listeners, its child processes.

    Args:
        directory: the run directory; it exists.
        listener: told every event, transient ones too.
        stretch: 1, or of a run that was resumed one more each time; what processes print then
            goes into a directory of its own.
    """

    def __init__(
        self, directory: Path, log: EventLog, listener: Listener, stretch: int = 1
    ) -> None:
        self.directory = directory
        self._log = log
        self._listener = listener
        self.logs = directory / "logs" if stretch == 1 else directory / "logs" / str(stretch)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._ahead: dict[tuple[str, str], Child] = {}

    def start_preparation(self) -> None:
        """Let the process that prepares the run import its libraries while the machine is probed.

        How threads wait is settled first, as long as none of ours works.
        """
        crowded()
        self._start_ahead("prepare", PREPARATION)

    def start_arm(self, arms: Sequence[str], config: Config) -> None:
        """Let the first arm import its libraries while the run is prepared."""
        if arms and arms[0] != VLLM:
            self._start_ahead(arms[0], ARM, config)

    def start_compiling(self, arms: Sequence[str], config: Config, device: str) -> None:
        """Let the loops of our engine be compiled meanwhile, where that was never done."""
        wanted = device == "cpu" and config.engine.kernel in ("auto", "numba")
        if wanted and set(ENGINE_ARMS).intersection(arms) and compiled_cache.is_empty():
            self._start_ahead(*LOOPS, config)

    def finish_compiling(self) -> None:
        """Wait for it: no arm is measured beside it."""
        if LOOPS in self._ahead:
            self.emit(Progress(task=message("progress.compile_loops"), done=0))
            self._run(*LOOPS, {}, _PREPARE_TIMEOUT_S, None)

    def _start_ahead(self, name: str, module: str, config: Config | None = None) -> None:
        """Start a process that will be needed soon; it imports its libraries meanwhile.

        It is the one that is handed its task later under this name, or :meth:`close` ends it.
        """
        log_path, env = self.logs / f"{name}.log", _variables(module, config, None)
        child = Child(module, None, log_path, _PREPARE_TIMEOUT_S, env)
        # Whoever is started is known here. What cannot be started now is tried again in its turn.
        with contextlib.suppress(ChildStartError), shielded():
            self._ahead[name, module] = child.__enter__()

    def close(self) -> None:
        """End what was started ahead and never needed."""
        with shielded():
            while self._ahead:
                _, child = self._ahead.popitem()
                child.__exit__(None, None, None)

    def _child(
        self,
        name: str,
        module: str,
        task: dict[str, Any],
        timeout_s: float,
        env: dict[str, str],
        python: str | None,
        log_path: Path,
    ) -> Child:
        """The one that was started ahead for this, or one that ``with`` starts.

        Until then it stays among those that :meth:`close` ends.
        """
        child = self._ahead.get((name, module))
        if child is None:
            return Child(module, task, log_path, timeout_s, env, python)
        child.begin(task, timeout_s)
        return child

    def begin(self) -> None:
        """Write down what has waited, where a run is resumed: nothing speaks against it."""
        with shielded():  # all of it or nothing: what follows is read by how it begins
            self._log.begin()

    def refuse(self, reason: Message) -> ArmFailed:
        """Write down why the run cannot be what was asked for, before anything is loaded."""
        return self._fail({}, "environment", reason, ExitCode.USAGE)

    def emit(self, event: Event) -> None:
        """Write an event down, unless it is transient, and tell the listener."""
        self._write(event)
        self._listener(event)

    def _write(self, event: Event, line: bytes | None = None) -> None:
        if not isinstance(event, TRANSIENT):
            self._log.write(event, line)

    def probe_environment(self, device: str, cores: float | None = None) -> Environment | ArmFailed:
        """Find out what it has; others kept so many ``cores`` busy before any of ours worked."""
        if moved := cache_notice():
            self.emit(Notice(text=moved))
        task = {"device": device, "others_cores": cores}
        end = self._run("environment", "experiment.children.probe", task, _PROBE_TIMEOUT_S, None)
        probed = end.get(EnvironmentProbed)
        if probed is not None and end.ok:
            return Environment.model_validate(probed.environment)
        return self._failure("environment", end)

    def prepare(
        self, config: Config, environment: Environment, prompts: list[str]
    ) -> Prepared | ArmFailed:
        """Fetch or build the model, turn prompts into requests."""
        task = {
            "config": config.model_dump(**_AS_GIVEN),
            "device": environment.device,
            "prompts": prompts,
            "arms": list(config.arm_names),
        }
        end = self._run("prepare", PREPARATION, task, _PREPARE_TIMEOUT_S, None)
        directory, model = end.get(ModelDirectory), end.get(ModelPrepared)
        workload = end.get(WorkloadReady)
        if end.ok and directory and model and workload:
            return Prepared(directory.path, model, workload)
        return self._failure("prepare", end)

    def prepare_cells(
        self, cells: Sequence[tuple[Config, Sequence[str]]], environment: Environment
    ) -> list[PreparedCell] | ArmFailed:
        """What each cell of an experiment is given: a config and the arms that run in it."""
        tasks = [{"config": c.model_dump(**_AS_GIVEN), "arms": list(arms)} for c, arms in cells]
        task = {"cells": tasks, "device": environment.device}
        seen: list[Event] = []
        end = self._run("prepare", PREPARATION, task, _PREPARE_TIMEOUT_S, None, seen=seen)
        found = [event for event in seen if isinstance(event, CellPrepared)]
        if not end.ok or len(found) != len(cells):
            return self._failure("prepare", end)
        return [
            PreparedCell(Prepared(each.path, each.model, each.workload), each.refused)
            for each in found
        ]

    def run_arm(
        self, arm: str, config: Config, environment: Environment, prepared: Prepared
    ) -> ArmFailed | None:
        """Run one arm from its beginning to its end; returns what :meth:`arm_course` does."""
        return alone(self.arm_course(arm, config, environment, prepared))

    def arm_course(
        self,
        arm: str,
        config: Config,
        environment: Environment,
        prepared: Prepared,
        cell: int | None = None,
    ) -> Course[ArmFailed | None]:
        """One arm in a fresh process, once the device's memory stands still; see :class:`Course`.

        What those of a ``cell`` print, and where they find their packages, is theirs alone: the
        same arm of another cell may be there at the same time.

        Returns why it failed, if it did; an arm that is skipped has not failed.
        """
        try:
            logs = self.logs if cell is None else self.logs / f"cell-{cell + 1}"
            if cell is not None:
                logs.mkdir(exist_ok=True)
            launch = plan_launch(arm, config, environment.device, prepared, logs.absolute())
        except UserError as error:
            self.close()  # no idle process beside one that is measured
            return self._fail({}, arm, error.text, error.exit_code)
        if isinstance(launch, Message):
            self.close()
            self.emit(ArmSkipped(arm=arm, reason=launch))
            return None

        def monitor(pid: int) -> Monitor:
            return Monitor(arm, pid, environment, self.emit, config.run.sample_interval_ms)

        device = DeviceWatch(arm, environment, self.emit)
        device.before()
        limit = config.run.arm_timeout_s * config.experiment.times
        end = yield from self._course(
            arm, launch.module, launch.task, limit, monitor, config, launch, logs=logs
        )
        device.after(end.pids)  # the driver may list them for a moment longer
        ended_well = end.ok and end.get(ArmFinished) is not None
        return None if ended_well else self._failure(arm, end)

    def measure_limits(self, task: dict[str, Any], config: Config) -> MachineLimits | None:
        """Run ``children.limits``; None, and the reason in the log, where it failed."""
        module = "experiment.children.limits"
        end = self._run("limits", module, task, _PROBE_TIMEOUT_S, None, config)
        limits = end.get(MachineLimits)
        if limits is None or not end.ok:
            self._failure("limits", end)
            return None
        return limits

    def look_at_margins(self, task: dict[str, Any], config: Config) -> None:
        """Run ``children.margins``; without it the report knows the difference alone."""
        self._run("margins", "experiment.children.margins", task, _PROBE_TIMEOUT_S, None, config)

    def _run(self, name: str, *args: Any, **more: Any) -> ChildEnd:
        return alone(self._course(name, *args, **more))

    def _course(
        self,
        name: str,
        module: str,
        task: dict[str, Any],
        timeout_s: float,
        monitor: Callable[[int], Monitor] | None,
        config: Config | None = None,
        launch: Launch | None = None,
        seen: list[Event] | None = None,
        logs: Path | None = None,
    ) -> Course[ChildEnd]:
        last: dict[type, Event] = {}
        python = launch.python if launch else None
        env = _variables(module, config, launch)
        try:
            log_path = (logs or self.logs) / f"{name}.log"
            with self._child(name, module, task, timeout_s, env, python, log_path) as child:
                self._ahead.pop((name, module), None)
                watcher = monitor(child.pid) if monitor else None
                try:
                    if watcher:
                        child.set_observed(watcher.met)
                        watcher.start()
                    yield from self._follow(child, watcher, last, seen)
                except (ChildTimeoutError, KeyboardInterrupt) as ended:
                    with shielded():
                        child.kill()
                        self._keep_rest(child)
                        if isinstance(ended, ChildTimeoutError):
                            reason = message("failure.timeout", seconds=timeout_s)
                            self._fail(last, name, reason)
                    if isinstance(ended, KeyboardInterrupt):
                        raise
                finally:
                    if watcher:
                        self._stop(watcher)
                code = child.wait()
                if child.lingered:
                    self.emit(Notice(text=message("failure.lingered", name=name)))
                pids = watcher.pids if watcher else frozenset()
                return ChildEnd(code, last, pids, child.lingered)
        except ChildStartError as error:
            self._fail(last, name, error.text, error.exit_code)
            return ChildEnd(error.exit_code, last)

    def _follow(
        self,
        child: Child,
        watcher: Monitor | None,
        last: dict[type, Event],
        seen: list[Event] | None,
    ) -> Course[None]:
        """Write down what a child says until it has ended.

        Raises:
            ChildTimeoutError: its time is over.
        """
        for event, line in child.events():
            last[type(event)] = event
            if seen is not None:
                seen.append(event)
            with shielded():
                self._write(event, line)
                child.taken()
            self._listener(event)
            if isinstance(event, StageEntered):
                if watcher:
                    watcher.mark(event.stage, event.request)
                if event.request is None:
                    child.note_shared()
                child.acknowledge()
            elif isinstance(event, TurnAwaited):
                yield from self._turn(child, watcher, event)

    def _turn(self, child: Child, watcher: Monitor | None, awaited: TurnAwaited) -> Course[None]:
        """Leave a child that waits for its turn alone, and let it go on when it has come."""
        if watcher:
            watcher.pause()
        left_s = child.pause_deadline()
        turn = yield awaited
        if turn is not None:
            cell, arm = turn.place
            told = {"repeat": awaited.repeat, "group": turn.group}
            self.emit(TurnStarted(cell=cell, arm=arm, **told))
        if watcher:
            watcher.resume()
        child.resume_deadline(left_s)

    def _keep_rest(self, child: Child) -> None:
        """Write down what a child that was ended had said by then: it is nowhere else."""
        for event, line in child.rest():
            self._write(event, line)

    def _stop(self, watcher: Monitor) -> None:
        """End sampling; say what it cost and, where samples are missing, that they are."""
        watcher.stop()
        if watcher.is_paused:
            return  # the run ends in the turn of another arm, whose log this is
        self.emit(watcher.cost())
        failure = watcher.failure()
        if failure is not None:
            self.emit(Notice(text=failure))

    def _failure(self, name: str, end: ChildEnd) -> ArmFailed:
        """The event that says why a child failed; made here when it could not say so itself."""
        said = end.get(ArmFailed)
        if said is not None:
            return said
        reason = message("failure.no_end") if end.lingered else end_reason(end.exit_code)
        return self._fail(end.last, name, reason, end.exit_code)

    def _fail(
        self, last: dict[type, Event], name: str, reason: Message, exit_code: int | None = None
    ) -> ArmFailed:
        event = ArmFailed(arm=name, reason=reason, exit_code=exit_code)
        last[ArmFailed] = event
        self.emit(event)
        return event


def _variables(module: str, config: Config | None, launch: Launch | None) -> dict[str, str]:
    """Thread counts must stand before the child imports anything that starts a pool."""
    if config is None:
        return hub_secrets() if module == PREPARATION else {}
    own = None if launch is None else launch.variables
    variables = thread_variables(config.run.threads) if own is None else own
    return {"HF_HUB_OFFLINE": "1"} | variables  # everything was fetched in the preparation
