"""Run one process per stage: start it, monitor its memory, record its events, end it.

The session is the only writer of the record. Events of a failed arm are kept.
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
from experiment.machine.thread_variables import has_background_load, thread_variables
from experiment.memory.monitor import Monitor
from experiment.memory.settle import DeviceWatch
from experiment.process.child import Child, ChildStartError, ChildTimeoutError
from experiment.process.child_end import ChildEnd, end_reason
from experiment.process.environment import hub_secrets
from experiment.process.interrupts import shielded
from experiment.record.log import EventLog
from experiment.runner.interleave import ArmCoroutine, run_to_completion
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message
from experiment.workload.prepared import Prepared

Listener = Callable[[Event], None]
PREPARATION = "experiment.children.prepare"
LOOPS = ("loops", "experiment.children.compile_loops")
_AS_GIVEN: Any = {"mode": "json", "exclude_unset": True}  # the preparation chooses unset values
_PREPARE_TIMEOUT_S, _PROBE_TIMEOUT_S = 4 * 3600.0, 300.0  # a large model over a slow connection


@dataclass(frozen=True, slots=True)
class PreparedCell:
    """Inputs of a cell's arms; ``refused`` are arms that cannot run in it."""

    prepared: Prepared
    refused: dict[str, Message]


class Session:
    """A run in progress: its log, listeners and child processes.

    Args:
        directory: the run directory; it exists.
        listener: called with every event, transient ones too.
        segment: number of the segment, from 1; a resumed run has one more each time. Logs of later
            segments are in a separate directory.
    """

    def __init__(
        self, directory: Path, log: EventLog, listener: Listener, segment: int = 1
    ) -> None:
        self.directory = directory
        self._log = log
        self._listener = listener
        self.logs = directory / "logs" if segment == 1 else directory / "logs" / str(segment)
        self.logs.mkdir(parents=True, exist_ok=True)
        self._ahead: dict[tuple[str, str], Child] = {}

    def start_preparation(self) -> None:
        """Start the preparation's process, so that it imports its libraries during the probe.

        Background load is measured first, while no process of ours works.
        """
        has_background_load()
        self._start_ahead("prepare", PREPARATION)

    def start_arm(self, arms: Sequence[str], config: Config) -> None:
        """Start the first arm's process, which imports its libraries during the preparation."""
        if arms and arms[0] != VLLM:
            self._start_ahead(arms[0], ARM, config)

    def start_compiling(self, arms: Sequence[str], config: Config, device: str) -> None:
        """Compile the engine's loops meanwhile, if there is no compiled code."""
        wanted = device == "cpu" and config.engine.kernel in ("auto", "numba")
        if wanted and set(ENGINE_ARMS).intersection(arms) and compiled_cache.is_empty():
            self._start_ahead(*LOOPS, config)

    def finish_compiling(self) -> None:
        """Wait for the compilation, which must not disturb a measured arm."""
        if LOOPS in self._ahead:
            self.emit(Progress(task=message("progress.compile_loops"), done=0))
            self._run(*LOOPS, {}, _PREPARE_TIMEOUT_S, None)

    def _start_ahead(self, name: str, module: str, config: Config | None = None) -> None:
        """Start a process ahead, so that it imports its libraries.

        It gets its task later under this name, or is ended by :meth:`close`.
        """
        log_path, env = self.logs / f"{name}.log", _variables(module, config, None)
        child = Child(module, None, log_path, _PREPARE_TIMEOUT_S, env)
        # Register each started process. A failed start is repeated when the process is needed.
        with contextlib.suppress(ChildStartError), shielded():
            self._ahead[name, module] = child.__enter__()

    def close(self) -> None:
        """End processes that were started ahead and not used."""
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
        """The process that was started ahead for this task, or a new one for ``with``.

        :meth:`close` ends it until it is removed from ``_ahead``.
        """
        child = self._ahead.get((name, module))
        if child is None:
            return Child(module, task, log_path, timeout_s, env, python)
        child.begin(task, timeout_s)
        return child

    def begin(self) -> None:
        """Continue a resumed run: write the events kept in memory."""
        with shielded():  # atomic: later events depend on the first
            self._log.begin()

    def refuse(self, reason: Message) -> ArmFailed:
        """Record why the run is refused, before anything is loaded."""
        return self._fail({}, "environment", reason, ExitCode.USAGE)

    def emit(self, event: Event) -> None:
        """Record an event, unless it is transient, and call the listener."""
        with shielded():  # pydantic replaces the exception of a signal
            self._write(event)
        self._listener(event)

    def _write(self, event: Event, line: bytes | None = None) -> None:
        if not isinstance(event, TRANSIENT):
            self._log.write(event, line)

    def probe_environment(self, device: str, cores: float | None = None) -> Environment | ArmFailed:
        """Probe the machine; ``cores`` is the background load before the run."""
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
        """Fetch or build the model, and convert prompts to requests."""
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
        """Prepare the cells of an experiment, each a config and its arms."""
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
        """Run one arm to completion; see :meth:`arm_coroutine` for the result."""
        return run_to_completion(self.arm_coroutine(arm, config, environment, prepared))

    def arm_coroutine(
        self,
        arm: str,
        config: Config,
        environment: Environment,
        prepared: Prepared,
        cell: int | None = None,
    ) -> ArmCoroutine[ArmFailed | None]:
        """Run one arm in a new process after the device has settled; see :class:`ArmCoroutine`.

        Logs and packages of a ``cell`` are in its own directory, because the same arm of another
        cell may run concurrently. Returns why the arm failed, or None, also if it was skipped.
        """
        try:
            logs = self.logs if cell is None else self.logs / f"cell-{cell + 1}"
            if cell is not None:
                logs.mkdir(exist_ok=True)
            launch = plan_launch(arm, config, environment.device, prepared, logs.absolute())
        except UserError as error:
            self.close()  # no idle process during a measurement
            return self._fail({}, arm, error.text, error.exit_code)
        if isinstance(launch, Message):
            self.close()
            self.emit(ArmSkipped(arm=arm, reason=launch))
            return None

        gpus = config.vllm.ranks if arm == VLLM else 1

        def monitor(pid: int) -> Monitor:
            interval = config.run.sample_interval_ms
            return Monitor(arm, pid, environment, self.emit, interval, gpus=gpus)

        device = DeviceWatch(arm, environment, self.emit, gpus=gpus)
        device.before()
        limit = config.run.arm_timeout_s * config.experiment.total_repeats
        end = yield from self._child_coroutine(
            arm, launch.module, launch.task, limit, monitor, config, launch, logs=logs
        )
        device.after(end.pids)  # the driver may list them a moment longer
        ended_well = end.ok and end.get(ArmFinished) is not None
        return None if ended_well else self._failure(arm, end)

    def measure_limits(self, task: dict[str, Any], config: Config) -> None:
        """Run ``children.limits``; if it fails, the reason is in the log."""
        module = "experiment.children.limits"
        end = self._run("limits", module, task, _PROBE_TIMEOUT_S, None, config)
        if end.get(MachineLimits) is None or not end.ok:
            self._failure("limits", end)

    def measure_margins(self, task: dict[str, Any], config: Config) -> None:
        """Run ``children.margins``; if it fails, the report shows only the difference."""
        self._run("margins", "experiment.children.margins", task, _PROBE_TIMEOUT_S, None, config)

    def _run(self, name: str, *args: Any, **more: Any) -> ChildEnd:
        return run_to_completion(self._child_coroutine(name, *args, **more))

    def _child_coroutine(
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
    ) -> ArmCoroutine[ChildEnd]:
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
                        child.observed = watcher.observed_processes
                        watcher.start()
                    yield from self._follow(child, watcher, last, seen)
                except (ChildTimeoutError, KeyboardInterrupt) as ended:
                    with shielded():
                        child.kill()
                        for event, line in child.unprocessed():
                            self._write(event, line)
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
                pids = {each.pid for each in watcher.observed_processes()} if watcher else ()
                return ChildEnd(code, last, frozenset(pids), child.lingered)
        except ChildStartError as error:
            self._fail(last, name, error.text, error.exit_code)
            return ChildEnd(error.exit_code, last)

    def _follow(
        self,
        child: Child,
        watcher: Monitor | None,
        last: dict[type, Event],
        seen: list[Event] | None,
    ) -> ArmCoroutine[None]:
        """Record a child's events until it has ended.

        Raises:
            ChildTimeoutError: the time limit is over.
        """
        for event, line in child.events():
            last[type(event)] = event
            if seen is not None:
                seen.append(event)
            with shielded():
                self._write(event, line)
                child.mark_processed()
            self._listener(event)
            if isinstance(event, StageEntered):
                if watcher:
                    watcher.mark(event.stage, event.request)
                if event.request is None:
                    child.record_shared_memory()
                child.acknowledge()
            elif isinstance(event, TurnAwaited):
                yield from self._turn(child, watcher, event)

    def _turn(
        self, child: Child, watcher: Monitor | None, awaited: TurnAwaited
    ) -> ArmCoroutine[None]:
        """Pause a child that waits for its turn, and continue it when its turn comes."""
        if watcher:
            watcher.pause()
        left_s = child.left_s()
        turn = yield awaited
        if turn is not None:
            cell, arm = turn.place
            details = {"repeat": awaited.repeat, "group": turn.group}
            self.emit(TurnStarted(cell=cell, arm=arm, **details))
        if watcher:
            watcher.resume()
        child.resume(left_s)

    def _stop(self, watcher: Monitor) -> None:
        in_turn = not watcher.is_paused
        watcher.stop()
        if not in_turn:
            return  # the run ends in the turn of another arm
        self.emit(watcher.cost())
        failure = watcher.failure()
        if failure is not None:
            self.emit(Notice(text=failure))

    def _failure(self, name: str, end: ChildEnd) -> ArmFailed:
        """The child's own ArmFailed event, or one that is derived from its exit code."""
        reported = end.get(ArmFailed)
        if reported is not None:
            return reported
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
    """Environment variables of a child; thread counts must be set before it imports libraries."""
    if config is None:
        return hub_secrets() if module == PREPARATION else {}
    own = None if launch is None else launch.variables
    variables = thread_variables(config.run.threads) if own is None else own
    return {"HF_HUB_OFFLINE": "1"} | variables  # everything was fetched in the preparation
