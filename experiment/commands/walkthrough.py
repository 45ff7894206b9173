"""The walkthrough: measure a run, render its reports, and check it against baseline and gate."""

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
    """Display and output options of a run; they do not change what is measured.

    ``nested``: run by a command that has already checked the background load.
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
        """Create the console for these options."""
        return run_console(self.lang, self.ascii, self.quiet, self.details)


def run_walkthrough(
    config: Config, options: RunOptions, resumption: Resumption | None = None
) -> int:
    """Run a config, or the missing part of a run; return the exit code.

    Raises:
        UserError: before anything was measured; later errors are recorded.
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
        except KeyboardInterrupt:  # outside of measuring
            if not is_begun(directory, resumption):
                with contextlib.suppress(OSError):
                    directory.rmdir()  # not empty for a resumed run
                raise
            code = interrupts.exit_code or ExitCode.INTERRUPTED
        try:
            interrupts.start_rendering()
            if not is_there(directory):
                gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                raise unwritable(directory, gone)
            results = render_ended(directory, options.lang, console.show_results)
        except KeyboardInterrupt:
            # A new console: one that was interrupted while printing cannot be used.
            options.console().warn(message("note.not_drawn", path=str(directory)))
            return interrupts.exit_code or ExitCode.INTERRUPTED
        except UserError as error:
            if interrupts.exit_code is None:
                raise
            console.warn(error.text)  # the interruption takes precedence
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
    """Run the missing part of an interrupted run; return the exit code.

    For a complete run this is its own exit code. ``given`` and ``overrides`` are as in
    :func:`read_resumption`.

    Raises:
        UserError: no such run, a contradictory record, or a run that cannot be resumed here.
    """
    resumption = read_resumption(directory, given, overrides)
    if not resumption.complete:
        return run_walkthrough(resumption.config, options, resumption)
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
