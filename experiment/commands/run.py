"""The stages that a person is led through, and the gates between them.

    environment ─ model and requests ─ contiguous arms ─ gate ─ paged arm ─ comparison ─ files

Whatever happens in a stage, what was measured before it is in the record, and the report is
drawn from that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiment import __version__
from experiment.arms.launch import refuse
from experiment.commands.background_load import may_ask, others_before
from experiment.commands.checks import check_run
from experiment.commands.experiment import check_experiment, lead
from experiment.commands.resume import Resumption, read_resumption
from experiment.commands.token_margins import explain_differences
from experiment.compare.checks import NO_CHECKS, Checks
from experiment.compare.facts import read_side, side_of
from experiment.config.reading import as_recorded
from experiment.config.schema import Config, group_of
from experiment.events import ArmFailed, Notice, RunFinished, RunResumed, RunStarted
from experiment.events.wall_clock import wall_clock
from experiment.experiments.evaluate import picture
from experiment.files.os_errors import disk_errors, unwritable, writing
from experiment.machine.environment import Environment
from experiment.machine.packages import check_installed
from experiment.model.source import text_warning
from experiment.process.interrupts import Interrupts, answer
from experiment.record.checksums import LOGS
from experiment.record.directories import make_run_directory
from experiment.record.log import EVENTS_FILE, EventLog
from experiment.replay.arm_events import PREPARATION
from experiment.report.console.brief import run_console
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.render import render_ended
from experiment.runner.session import Session
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message
from experiment.text.redaction import without_names
from experiment.workload.prepared import Prepared
from experiment.workload.requests import check_prompts, choose_prompts


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a run is shown and where it is written; nothing here changes what is measured.

    ``nested``: by a command that has said already whether other programs keep cores busy.
    """

    lang: str
    yes: bool
    quiet: bool
    ascii: bool
    out: Path | None
    command: tuple[str, ...]
    checks: Checks = NO_CHECKS
    nested: bool = False
    details: bool = False


class _LeaveError(Exception):
    """The person pressed q; ``failure`` is that of an arm before, if there was one."""

    failure: ArmFailed | None = None


def run(config: Config, options: RunOptions, resumption: Resumption | None = None) -> int:
    """Lead a person through a whole run, or what is missing of one; returns the exit code.

    Raises:
        UserError: before anything was measured; afterwards errors are part of the record.
    """
    prompts = choose_prompts(config)
    check_prompts(prompts)
    check_experiment(config)
    check_installed()
    directory = resumption.directory if resumption else make_run_directory(options.out)
    console = _console(options)
    with Interrupts() as interrupts:
        try:
            code, begun = _measure(
                config, options, resumption, prompts, console, interrupts, directory
            )
            if not begun:
                return code
        except KeyboardInterrupt:  # between what is measured and the end of the log
            if not _is_begun(directory, resumption):
                with contextlib.suppress(OSError):
                    directory.rmdir()  # that of a run to go on with holds its log
                raise
            code = interrupts.exit_code or ExitCode.INTERRUPTED
        try:
            interrupts.draws()
            if not _is_there(directory):
                gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                raise unwritable(directory, gone)
            results = render_ended(directory, options.lang, console.show_results)
        except KeyboardInterrupt:
            # Another one: a signal in the middle of a print leaves a console that prints no more.
            anew = _console(options)
            anew.warn(message("note.not_drawn", path=str(directory)))
            return interrupts.exit_code or ExitCode.INTERRUPTED
        except UserError as error:
            if interrupts.exit_code is None:
                raise
            console.warn(error.text)  # whoever runs this has to end, whatever drawing says
            return interrupts.exit_code
    if code == ExitCode.OK and results.experiment and results.experiment.problems:
        code = ExitCode.INCOMPLETE
    if not options.checks.any:
        return code
    side = read_side(directory, own=True)
    return check_run(directory, side, options.checks, code, options.lang, options.ascii)


def _console(options: RunOptions) -> ConsoleReporter:
    return run_console(options.lang, options.ascii, options.quiet, options.details)


def _measure(
    config: Config,
    options: RunOptions,
    resumption: Resumption | None,
    prompts: list[str],
    console: ConsoleReporter,
    interrupts: Interrupts,
    directory: Path,
) -> tuple[int, bool]:
    """Everything up to the end of the log: the exit code, and whether there is a log.

    Raises:
        UserError: nothing could be measured, or no more be written.
    """
    with (
        contextlib.ExitStack() as opening,
        disk_errors(directory),
        _log(directory, resumption, opening, interrupts) as log,
    ):
        stretch = resumption.stretch if resumption else 1
        with writing(directory):
            session = Session(directory, log, console.handle, stretch)
        first = _first_event(config, options, resumption)

        def stages() -> ArmFailed | None:
            session.emit(first)
            opening.close()
            return _stages(session, console, config, prompts, options, resumption)

        try:
            status, failure = _attempt(stages, console, interrupts)
        finally:
            with contextlib.suppress(KeyboardInterrupt), interrupts.shield():
                session.close()
                if not log.begun:
                    shutil.rmtree(session.logs, ignore_errors=True)  # the run stays as it was
        if not log.begun:
            code = interrupts.exit_code or _exit_code(failure)
            if failure is not None:
                raise UserError(failure.reason, code)
            return code, False
        # What comes now waits until the log has its end; whatever ended the run stands in it.
        with contextlib.suppress(KeyboardInterrupt), interrupts.shield():
            if interrupts.signal not in (None, signal.SIGINT):
                session.emit(Notice(text=message("note.ended_by", signal=interrupts.signal.name)))
            session.emit(RunFinished.model_validate({"status": status}))
    if failure and failure.arm in PREPARATION and failure.exit_code == ExitCode.USAGE:
        _take_back(directory)
        raise UserError(failure.reason)
    return interrupts.exit_code or _exit_code(failure), True


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


def _is_begun(directory: Path, resumption: Resumption | None) -> bool:
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
    stages: Callable[[], ArmFailed | None], console: ConsoleReporter, interrupts: Interrupts
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
            console.end_task()


def resume(
    directory: Path, given: Config | None, overrides: Mapping[str, Any], options: RunOptions
) -> int:
    """Run what is missing of a run that broke off; returns the exit code.

    Where nothing is, that is the one with which the run ended. ``given`` and ``overrides`` are as
    :func:`read_resumption` takes them.

    Raises:
        UserError: there is no such run, it contradicts itself, or it cannot go on here.
    """
    resumption = read_resumption(directory, given, overrides)
    if not resumption.complete:
        return run(resumption.config, options, resumption)
    console = ConsoleReporter(options.lang, options.ascii)
    console.warn(message("note.resume_complete", path=str(directory)))
    _, results = picture(resumption.record)
    for problem in results.experiment.problems if results.experiment else ():
        console.warn(problem)
    code = ExitCode.OK if results.status == "complete" else ExitCode.INCOMPLETE
    if not options.checks.any:
        return code
    side = side_of(resumption.record, results)
    return check_run(directory, side, options.checks, code, options.lang, options.ascii)


def _stages(
    session: Session,
    console: ConsoleReporter,
    config: Config,
    prompts: list[str],
    options: RunOptions,
    resumption: Resumption | None,
) -> ArmFailed | None:
    """Every stage up to the last arm; returns the first failure.

    Raises:
        UserError: a run that is to go on cannot go on here.
    """
    warning = text_warning(config)
    if warning is not None:
        console.warn(warning)  # on the first screen; the record has it with the model
    console.section("section.environment")
    warn = partial(console.warn, always=not options.nested)
    others = others_before(warn, console.ask if may_ask(options.yes) else None)
    console.begin_task("progress.environment")
    session.start_preparation()
    with contextlib.suppress(RuntimeError):  # no thread more: it is imported in its turn
        threading.Thread(target=_import_late, daemon=True).start()
    environment = session.probe_environment(config.run.device, others)
    console.end_task()
    if isinstance(environment, ArmFailed):
        return environment
    if resumption is not None:
        resumption.check_machine(environment)
    if environment.load.busy and others is None:
        session.emit(Notice(text=message("note.busy", load=environment.load.average)))
    if config.run.cuda_history and environment.device != "cuda":
        session.emit(Notice(text=message("usage.history_without_cuda")))
    refused = refuse(config, environment)
    if refused is not None:
        return session.refuse(refused)
    if config.experiment.name is not None:
        gate = partial(_gate, console, options)
        return lead(session, console, config, environment, gate, resumption)
    console.section("section.model")
    console.begin_task("progress.prepare")
    arms = list(config.arm_names) if resumption is None else [a for _, a in resumption.missing]
    session.start_compiling(arms, config, environment.device)
    session.start_arm(arms, config)
    prepared = session.prepare(config, environment, prompts)
    session.finish_compiling()
    console.end_task()
    if isinstance(prepared, ArmFailed):
        return prepared
    if resumption is not None:
        resumption.check_prepared(prepared.model, prepared.workload)
    session.begin()
    return _arms(session, console, config, environment, prepared, options, arms)


def _import_late() -> None:
    """Import what draws at the end, while the machine is looked at."""
    with contextlib.suppress(ImportError):  # drawing will say so
        import matplotlib.figure  # noqa: F401
        import pandas  # noqa: F401


def _arms(
    session: Session,
    console: ConsoleReporter,
    config: Config,
    environment: Environment,
    prepared: Prepared,
    options: RunOptions,
    arms: Sequence[str],
) -> ArmFailed | None:
    failure: ArmFailed | None = None
    previous: str | None = None
    for arm in arms:
        group = group_of(arm)
        if group != previous:
            if previous is not None:
                try:
                    _gate(console, options, group)
                except _LeaveError as left:
                    left.failure = failure
                    raise
            console.section(f"section.{group}")
            previous = group
        console.begin_task("progress.start_arm")
        failed = session.run_arm(arm, config, environment, prepared)
        console.end_task()
        failure = failure or failed
    if _is_there(session.directory):
        explain_differences(session, config, environment.device, prepared)
    return failure


def _gate(console: ConsoleReporter, options: RunOptions, group: str | None = None) -> None:
    """Wait for Enter where a person sits at a terminal, before a group of arms; q leaves.

    Raises:
        _LeaveError: q was pressed.
    """
    if not may_ask(options.yes):
        return
    console.console.print()
    if group is not None:
        console.announce(f"section.{group}_about")
    console.ask(message("gate.continue"))
    said = answer(input)
    if said.strip().lower() == "q":
        raise _LeaveError


def _is_there(directory: Path) -> bool:
    """A log that is open goes on being written, wherever its directory was moved, or nowhere."""
    return (directory / EVENTS_FILE).exists()


def _first_event(
    config: Config, options: RunOptions, resumption: Resumption | None
) -> RunStarted | RunResumed:
    common: dict[str, Any] = {
        "version": __version__,
        **wall_clock(),
        "command": [without_names(word) for word in options.command],
    }
    if resumption is not None:
        return RunResumed(missing=list(resumption.missing), **common)
    return RunStarted(lang=options.lang, config=as_recorded(config), **common)


def _exit_code(failure: ArmFailed | None) -> int:
    if failure is None:
        return ExitCode.OK
    if failure.arm in PREPARATION and failure.exit_code == ExitCode.USAGE:
        return ExitCode.USAGE
    return ExitCode.INCOMPLETE  # of an arm: the others ran
