"""Leads a person through a run, draws it, and holds it against what it is checked by."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiment.commands.checks import check_run
from experiment.compare.checks import NO_CHECKS, Checks
from experiment.compare.facts import read_side, side_of
from experiment.config.schema import Config
from experiment.experiments.evaluate import picture
from experiment.files.bounded_reading import evaluating
from experiment.files.os_errors import unwritable
from experiment.measure.resume import Resumption, read_resumption
from experiment.measure.run import Showing, check, is_begun, is_there, measure
from experiment.measure.watcher import may_ask
from experiment.process.interrupts import Interrupts
from experiment.record.directories import make_run_directory
from experiment.report.console.brief import run_console
from experiment.report.console.experiment_live import ExperimentConsole
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.render import render_ended
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import message


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

    def console(self) -> ConsoleReporter:
        """A console that shows it so."""
        return run_console(self.lang, self.ascii, self.quiet, self.details)


def lead(config: Config, options: RunOptions, resumption: Resumption | None = None) -> int:
    """Lead a person through a whole run, or what is missing of one; returns the exit code.

    Raises:
        UserError: before anything was measured; afterwards errors are part of the record.
    """
    prompts = check(config)
    directory = resumption.directory if resumption else make_run_directory(options.out)
    console = options.console()
    showing = Showing(
        console, partial(ExperimentConsole, console), options.lang, options.command,
        may_ask(options.yes), options.nested,
    )  # fmt: skip
    with Interrupts() as interrupts:
        try:
            measured = measure(config, directory, showing, resumption, interrupts, prompts)
            if measured is None:
                return interrupts.exit_code or ExitCode.OK
            code = measured
        except KeyboardInterrupt:  # between what is measured and the end of the log
            if not is_begun(directory, resumption):
                with contextlib.suppress(OSError):
                    directory.rmdir()  # that of a run to go on with holds its log
                raise
            code = interrupts.exit_code or ExitCode.INTERRUPTED
        try:
            interrupts.start_rendering()
            if not is_there(directory):
                gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                raise unwritable(directory, gone)
            results = render_ended(directory, options.lang, console.show_results)
        except KeyboardInterrupt:
            # Another one: a signal in the middle of a print leaves a console that prints no more.
            options.console().warn(message("note.not_drawn", path=str(directory)))
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
        return lead(resumption.config, options, resumption)
    console = ConsoleReporter(options.lang, options.ascii)
    console.warn(message("note.resume_complete", path=str(directory)))
    _, results = picture(resumption.record)
    for problem in results.experiment.problems if results.experiment else ():
        console.warn(problem)
    code = ExitCode.OK if results.status == "complete" else ExitCode.INCOMPLETE
    if not options.checks.any:
        return code
    with evaluating(directory):
        side = side_of(resumption.record, results)
    return check_run(directory, side, options.checks, code, options.lang, options.ascii)
