"""``simulate``: simulate a trace with several policies, and write the reports."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from experiment.commands import simulation_options as words
from experiment.commands.parser import fields
from experiment.files.os_errors import writing
from experiment.process.interrupts import rendering_started, shielded
from experiment.record.directories import run_directory
from experiment.record.simulation import write_simulation
from experiment.simulate.run import (
    Question,
    ask,
    failures,
    nothing,
    parts_of,
    recorded,
    run,
    start,
)
from experiment.text import Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import message
from experiment.text.redaction import without_private

OPTIONS = {
    **words.TRACE, "--skip-bad-rows": None, **words.MODEL, "--policy": "NAME,...",
    **words.LIMITS, **words.SWEEPS, "--out": "DIR", "--details": None, "--quiet": None,
}  # fmt: skip


def simulate(options: argparse.Namespace, t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: invalid argument, trace, model or memory.
    """
    question = question_of(options)
    from experiment.report.console.simulation import SimulationConsole

    console = SimulationConsole(t.lang, options.ascii, options.quiet, options.details)
    head = start(question, t.lang, [without_private(word) for word in sys.argv[1:]])
    with run_directory(Path(options.out) if options.out else None, "simulate-") as directory:
        return _measure(question, head, directory, console)


def _measure(question: Question, head: dict[str, Any], directory: Path, console: Any) -> int:
    results = nothing()
    try:
        console.show_question(head)
        with console.progress(parts_of(question)) as watcher:
            run(question, watcher.begin, results)
    except KeyboardInterrupt:
        if not results["cells"]:
            raise
    data = recorded(head, results)
    try:
        with shielded(), writing(directory, ExitCode.UNWRITABLE):  # it may have taken an hour
            write_simulation(directory, data)
            rendering_started()
        from experiment.report.render import draw_simulation

        console.show_simulation(data, draw_simulation(directory, data, console.t.lang))
    except KeyboardInterrupt:
        console.warn(message("note.not_drawn", path=str(directory)))
        return ExitCode.INTERRUPTED
    if results["interrupted"]:
        return ExitCode.INTERRUPTED
    return ExitCode.INCOMPLETE if failures(results) else ExitCode.OK


def question_of(options: argparse.Namespace) -> Question:
    """What the options ask for.

    Raises:
        UserError: missing or contradictory options, or an invalid trace, model or memory.
    """
    words.check_needed(options, "--gpu", "--trace")
    return ask(
        words.trace_of(options),
        options.model,
        options.gpu,
        words.memory_of(options),
        words.limits_of(options),
        policies=options.policy,
        **words.sizes_of(options),
        **fields(options, "--samples", "--beams", "--branching", "--seed", *words.SWEEPS),
    )
