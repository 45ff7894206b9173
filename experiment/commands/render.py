"""``render``: write the reports of a recorded run or simulation again."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiment.record.simulation import SIM_FILE
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

OPTIONS = {"run": "RUN", "--details": None}


def render(options: argparse.Namespace, t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: no run, a contradictory record, or files that cannot be written.
    """
    if not options.run:
        raise user_error("error.needs_run", command="render")
    directory = Path(options.run)
    from experiment.report import render as rendering

    if (directory / SIM_FILE).exists():
        from experiment.report.console.simulation import SimulationConsole

        shown = SimulationConsole(t.lang, options.ascii, details=options.details)
        rendering.render_simulation(directory, t.lang, shown.show_question, shown.show_simulation)
        return ExitCode.OK
    from experiment.report.console.brief import run_console

    console = run_console(t.lang, options.ascii, details=options.details)
    rendering.render(directory, t.lang, console.show_results, console.warn)
    return ExitCode.OK
