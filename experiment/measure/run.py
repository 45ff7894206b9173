"""Measures a run: environment, model and requests, arms; what was measured is in the record.

    environment ─ model and requests ─ contiguous arms ─ gate ─ paged arm

Whatever happens in a stage, what was measured before it is written down.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiment import __version__
from experiment.arms.launch import refusal_reason
from experiment.config.reading import as_recorded
from experiment.config.schema import Config, group_of
from experiment.events import ArmFailed, Notice, RunFinished, RunResumed, RunStarted
from experiment.events.wall_clock import wall_clock
from experiment.files.code_cache import numba_cache
from experiment.files.os_errors import disk_errors, writing
from experiment.machine.environment import Environment
from experiment.machine.packages import check_installed
from experiment.measure.cells import check_experiment, measure_cells
from experiment.measure.resume import Resumption
from experiment.measure.token_margins import explain_differences
from experiment.measure.watcher import CellsWatcher, Watcher, others_before
from experiment.model.source import text_warning
from experiment.process.environment import check_addresses
from experiment.process.interrupts import Interrupts
from experiment.record.checksums import LOGS
from experiment.record.log import EVENTS_FILE, EventLog
from experiment.replay.arm_events import PREPARATION
from experiment.runner.session import Session
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from experiment.text.redaction import without_names
from experiment.workload.prepared import Prepared
from experiment.workload.requests import check_prompts, choose_prompts


@dataclass(frozen=True, slots=True)
class Showing:
    """How a run is shown and named in its record; nothing here changes what is measured.

    Attributes:
        lang: language of its reports.
        command: words of the command line.
        cells: makes the watcher of an experiment.
        asks: a person is asked before each group of arms.
        nested: by a command that has said already whether other programs keep cores busy.
    """

    watcher: Watcher = field(default_factory=Watcher)
    cells: Callable[[], CellsWatcher] = CellsWatcher
    lang: str = "en"
    command: tuple[str, ...] = ()
    asks: bool = False
    nested: bool = False


class _LeaveError(Exception):
    """The person pressed q; ``failure`` is that of an arm before, if there was one."""

    failure: ArmFailed | None = None


def check(config: Config) -> list[str]:
    """The prompts of a config; whatever can be known to be wrong with it is raised.

    Raises:
        UserError: a prompt, an experiment, an installed package or the hub's address does not fit,
            or others can write to the compiled code.
    """
    prompts = choose_prompts(config)
    check_prompts(prompts)
    check_experiment(config)
    check_installed()
    check_addresses()
    numba_cache()  # refuses it, before a process is started
    return prompts


def measure(
    config: Config,
    directory: Path,
    showing: Showing = Showing(),
    resumption: Resumption | None = None,
    interrupts: Interrupts | None = None,
    prompts: list[str] | None = None,
) -> int | None:
    """Measure every arm, each in a process of its own, and write the record.

    Args:
        config: what is run.
        directory: of the run; is there, and empty but for a run that goes on.
        showing: who watches.
        resumption: a run that goes on.
        interrupts: takes the signals; None: for as long as this lasts.
        prompts: of :func:`check`; None: it is called.

    Returns:
        The exit code: 0 where all arms ended well; None where nothing was left to be written.

    Raises:
        UserError: nothing could be measured, or no more be written.
    """
    prompts = prompts or check(config)
    with contextlib.nullcontext(interrupts) if interrupts else Interrupts() as taken:
        return _measure(config, directory, showing, resumption, taken, prompts)


def _measure(
    config: Config,
    directory: Path,
    showing: Showing,
    resumption: Resumption | None,
    interrupts: Interrupts,
    prompts: list[str],
) -> int | None:
    watcher = showing.watcher
    with (
        contextlib.ExitStack() as opening,
        disk_errors(directory),
        _log(directory, resumption, opening, interrupts) as log,
    ):
        stretch = resumption.stretch if resumption else 1
        with writing(directory):
            session = Session(directory, log, watcher.handle, stretch)
        first = _first_event(config, showing, resumption)

        def stages() -> ArmFailed | None:
            session.emit(first)
            opening.close()
            return _stages(session, config, prompts, showing, resumption)

        try:
            status, failure = _attempt(stages, watcher, interrupts)
        finally:
            with contextlib.suppress(KeyboardInterrupt), interrupts.shield():
                session.close()
                if not log.begun:
                    shutil.rmtree(session.logs, ignore_errors=True)  # the run stays as it was
        if not log.begun:
            code = interrupts.exit_code or _exit_code(failure)
            if failure is not None:
                raise UserError(failure.reason, code)
            return None
        # What comes now waits until the log has its end; whatever ended the run stands in it.
        with contextlib.suppress(KeyboardInterrupt), interrupts.shield():
            if interrupts.signal not in (None, signal.SIGINT):
                session.emit(Notice(text=message("note.ended_by", signal=interrupts.signal.name)))
            session.emit(RunFinished.model_validate({"status": status}))
    if failure and failure.arm in PREPARATION and failure.exit_code == ExitCode.USAGE:
        _take_back(directory)
        raise UserError(failure.reason)
    return interrupts.exit_code or _exit_code(failure)


def _log(
    directory: Path,
    resumption: Resumption | None,
    opening: contextlib.ExitStack,
    interrupts: Interrupts,
) -> EventLog:
    """Open the log; signals wait until ``opening`` is closed: a run that has a log has a line."""
    with writing(directory):  # nothing was measured yet
        if resumption is None:
            opening.enter_context(interrupts.shield())
            return EventLog(directory)
        return EventLog(directory, resume=True, size=resumption.size)


def is_begun(directory: Path, resumption: Resumption | None) -> bool:
    """Whether this run, or what was gone on with, has a line in the log."""
    try:
        size = (directory / EVENTS_FILE).stat().st_size
    except FileNotFoundError:
        return False
    return size > (0 if resumption is None else resumption.size)


def _take_back(directory: Path) -> None:
    """Remove what a run wrote that measured nothing; what somebody else put there stays."""
    shutil.rmtree(directory / LOGS, ignore_errors=True)
    with contextlib.suppress(OSError):
        (directory / EVENTS_FILE).unlink()
        directory.rmdir()


def _attempt(
    stages: Callable[[], ArmFailed | None], watcher: Watcher, interrupts: Interrupts
) -> tuple[str, ArmFailed | None]:
    """Go through the stages: how the run ended, and the first failure."""
    try:
        failure = stages()
        return ("complete" if failure is None else "incomplete"), failure
    except _LeaveError as left:
        return "left", left.failure
    except KeyboardInterrupt:
        interrupts.signal = interrupts.signal or signal.SIGINT
        return "interrupted", None
    finally:
        with contextlib.suppress(OSError):
            watcher.end_task()


def _stages(
    session: Session,
    config: Config,
    prompts: list[str],
    showing: Showing,
    resumption: Resumption | None,
) -> ArmFailed | None:
    """Every stage up to the last arm; returns the first failure.

    Raises:
        UserError: a run that is to go on cannot go on here.
    """
    watcher = showing.watcher
    warning = text_warning(config)
    if warning is not None:
        watcher.warn(warning)  # on the first screen; the record has it with the model
    watcher.section("section.environment")
    warn = partial(watcher.warn, always=not showing.nested)
    others = others_before(warn, watcher.ask if showing.asks else None)
    watcher.begin_task("progress.environment")
    session.start_preparation()
    with contextlib.suppress(RuntimeError):  # no thread more: it is imported in its turn
        threading.Thread(target=_import_late, daemon=True).start()
    environment = session.probe_environment(config.run.device, others)
    watcher.end_task()
    if isinstance(environment, ArmFailed):
        return environment
    if resumption is not None:
        resumption.check_machine(environment)
    if environment.load.busy and others is None:
        session.emit(Notice(text=message("note.busy", load=environment.load.average)))
    if config.run.cuda_history and environment.device != "cuda":
        session.emit(Notice(text=message("usage.history_without_cuda")))
    refused = refusal_reason(config, environment)
    if refused is not None:
        return session.refuse(refused)
    if config.experiment.name is not None:
        gate = partial(_gate, showing)
        return measure_cells(
            session, watcher, showing.cells(), config, environment, gate, resumption
        )
    watcher.section("section.model")
    watcher.begin_task("progress.prepare")
    arms = list(config.arm_names) if resumption is None else [a for _, a in resumption.missing]
    session.start_compiling(arms, config, environment.device)
    session.start_arm(arms, config)
    prepared = session.prepare(config, environment, prompts)
    session.finish_compiling()
    watcher.end_task()
    if isinstance(prepared, ArmFailed):
        return prepared
    if resumption is not None:
        resumption.check_prepared(prepared.model, prepared.workload)
    session.begin()
    return _arms(session, config, environment, prepared, showing, arms)


def _import_late() -> None:
    """Import what draws at the end, while the machine is looked at."""
    with contextlib.suppress(ImportError):  # drawing will say so
        import matplotlib.figure  # noqa: F401
        import pandas  # noqa: F401


def _arms(
    session: Session,
    config: Config,
    environment: Environment,
    prepared: Prepared,
    showing: Showing,
    arms: Sequence[str],
) -> ArmFailed | None:
    watcher = showing.watcher
    failure: ArmFailed | None = None
    previous: str | None = None
    for arm in arms:
        group = group_of(arm)
        if group != previous:
            if previous is not None:
                try:
                    _gate(showing, group)
                except _LeaveError as left:
                    left.failure = failure
                    raise
            watcher.section(f"section.{group}")
            previous = group
        watcher.begin_task("progress.start_arm")
        failed = session.run_arm(arm, config, environment, prepared)
        watcher.end_task()
        failure = failure or failed
    if is_there(session.directory):
        explain_differences(session, config, environment.device, prepared)
    return failure


def _gate(showing: Showing, group: str | None = None) -> None:
    """Wait for Enter where a person sits at a terminal, before a group of arms; q leaves.

    Raises:
        _LeaveError: q was pressed.
    """
    if not showing.asks:
        return
    showing.watcher.announce(group and f"section.{group}_about")
    if showing.watcher.ask(message("gate.continue")) == "q":
        raise _LeaveError


def is_there(directory: Path) -> bool:
    """A log that is open goes on being written, wherever its directory was moved, or nowhere."""
    return (directory / EVENTS_FILE).exists()


def _first_event(
    config: Config, showing: Showing, resumption: Resumption | None
) -> RunStarted | RunResumed:
    common: dict[str, Any] = {
        "version": __version__,
        **wall_clock(),
        "command": [without_names(word) for word in showing.command],
    }
    if resumption is not None:
        return RunResumed(missing=list(resumption.missing), **common)
    return RunStarted(lang=showing.lang, config=as_recorded(config), **common)


def _exit_code(failure: ArmFailed | None) -> int:
    if failure is None:
        return ExitCode.OK
    if failure.arm in PREPARATION and failure.exit_code == ExitCode.USAGE:
        return ExitCode.USAGE
    return ExitCode.INCOMPLETE  # of an arm: the others ran
