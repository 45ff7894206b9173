"""``calibrate``: fit a model of step times to a recorded run, and report its error."""

from __future__ import annotations

from pathlib import Path

from experiment.commands import simulation_options as words
from experiment.commands.parser import make_parser, parse
from experiment.commands.values import choice, whole
from experiment.files.bounded_reading import check_replaceable
from experiment.simulate.calibrate import Server
from experiment.simulate.calibrate import calibrate as fitted
from experiment.simulate.latency_file import write_latency
from experiment.simulate.setup import Memory
from experiment.text import Translator
from experiment.text.errors import ExitCode, user_error

_FOLDS = 5
_MODEL = ("--model", "--gpu", "--gpus", "--dtype")
OPTIONS = {
    "source": "RUN|FILE", "--from-log": "FILE",
    **{flag: words.MODEL[flag] for flag in (*_MODEL, "--list")},
    **{flag: words.LIMITS[flag] for flag in ("--max-num-seqs", "--max-num-batched-tokens")},
    "--shared-prefix": "N",
    "--arm": "ARM", "--folds": "N", "--out": "FILE",
}  # fmt: skip


def calibrate(arguments: list[str], t: Translator) -> int:
    """Run the command; return the exit code.

    Raises:
        UserError: invalid argument, or no record to fit.
    """
    options = parse(make_parser(t, "calibrate", OPTIONS), arguments)
    if words.shows_list(options, t):
        return ExitCode.OK
    if not options.source:
        raise user_error("error.needs_run", command="calibrate")
    check_replaceable(options.out, "latency", "--out")
    data = fitted(
        Path(options.source),
        arm=options.arm,
        folds=whole("--folds", options.folds, 2) or _FOLDS,
        model=options.model,
        gpu=options.gpu,
        memory=Memory(
            gpus=whole("--gpus", options.gpus) or 1,
            dtype=choice("--dtype", options.dtype, words.DTYPES),
        ),
        server=Server(
            options.from_log,
            whole("--max-num-seqs", options.max_num_seqs),
            whole("--max-num-batched-tokens", options.max_num_batched_tokens),
            whole("--shared-prefix", options.shared_prefix, least=0) or 0,
        ),
    )
    from experiment.report.console.calibration import show_calibration

    show_calibration(data, t.lang, options.ascii)
    if options.out:
        write_latency(Path(options.out), data)
    return ExitCode.OK
