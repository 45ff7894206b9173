"""``calibrate``: fit a model of step times to a recorded run, and report its error."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from experiment.commands import simulation_options as words
from experiment.commands.parser import fields
from experiment.commands.values import whole
from experiment.files.bounded_reading import check_replaceable
from experiment.simulate.calibrate import Server
from experiment.simulate.calibrate import calibrate as fitted
from experiment.simulate.latency_file import write_latency
from experiment.simulate.setup import Memory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

_SERVER = ("--max-num-seqs", "--max-num-batched-tokens")
OPTIONS = {
    "source": "RUN|FILE", "--from-log": "FILE",
    **{flag: words.MODEL[flag] for flag in ("--model", "--gpu", "--gpus", "--dtype", "--list")},
    **{flag: words.LIMITS[flag] for flag in _SERVER},
    "--shared-prefix": ("N", partial(whole, least=0)),
    "--arm": "ARM", "--folds": ("N", partial(whole, least=2)), "--out": "FILE",
}  # fmt: skip


def calibrate(options: argparse.Namespace, t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: invalid argument, or no record to fit.
    """
    if not options.source:
        raise user_error("error.needs_run", command="calibrate")
    check_replaceable(options.out, "latency", "--out")
    data = fitted(
        Path(options.source),
        memory=Memory(gpus=options.gpus or 1, dtype=options.dtype),
        server=Server(options.from_log, **fields(options, *_SERVER, "--shared-prefix")),
        **fields(options, "--arm", "--folds", "--model", "--gpu"),
    )
    from experiment.report.console.calibration import show_calibration
    from experiment.report.console.lines import Console

    show_calibration(data, t.lang, options.ascii)
    if options.out:
        write_latency(Path(options.out), data)
        Console(t.lang, options.ascii).written(Path(options.out))
    return ExitCode.OK
