"""``compare``: compare two runs, check a run against a baseline or gate, write a baseline."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiment.commands.checks import judge_gate, show_comparison
from experiment.commands.parser import refuse_given
from experiment.compare.baseline import KIND, read_any, read_baseline, write_baseline
from experiment.compare.checks import Checks, read_checks
from experiment.compare.results import Side
from experiment.files.bounded_reading import check_replaceable
from experiment.record.directories import make_run_directory
from experiment.report.console.compare import CompareConsole
from experiment.text import Translator
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import message

_TWO = 2
OPTIONS = {
    "run*": "RUN", "--baseline": "RUN|FILE", "--gate": "FILE", "--write-baseline": "FILE",
    "--details": None, "--out": "DIR",
}  # fmt: skip


def compare(options: argparse.Namespace, t: Translator) -> int:
    """Run the command; return the exit code, 4 if a gate fails.

    Raises:
        UserError: invalid arguments.
    """
    paths = [Path(word) for word in options.run]
    _check_words(options, paths)
    check_replaceable(options.write_baseline, KIND, "--write-baseline")
    checks = read_checks(options.baseline, options.gate, before=len(paths) == _TWO)
    new = Path(options.write_baseline) if options.write_baseline else None
    right = read_any(paths[-1])
    console = CompareConsole(t.lang, options.ascii, details=options.details)
    left = _left(paths, checks, new, console)
    if left is not None:
        out = Path(options.out) if options.out else make_run_directory(None, "compare-")
        show_comparison(out, left, right, console)
    code = judge_gate(Checks(checks.baseline or left, checks.limits), right, console)
    if new is not None and code == ExitCode.OK:
        console.baseline_written(new, write_baseline(new, right))
    elif new is not None:  # a failed gate would pass the next time
        console.note(message("compare.not_renewed", path=str(new)))
    return code


def _check_words(options: argparse.Namespace, paths: list[Path]) -> None:
    other = options.baseline or options.gate or options.write_baseline
    if not paths or (len(paths) == 1 and not other):
        raise user_error("error.compare.needs_two")
    if len(paths) > _TWO:
        raise user_error("error.stray_word", word=str(paths[_TWO]))
    if len(paths) == _TWO:
        refuse_given(options, ("--baseline",), beside="RUN RUN")


def _left(
    paths: list[Path], checks: Checks, new: Path | None, console: CompareConsole
) -> Side | None:
    """The left side: the first run, the baseline, or the baseline to replace."""
    if len(paths) == _TWO:
        return read_any(paths[0])
    if checks.baseline is None and new is not None and new.exists():
        return _replaced(new, console)
    return checks.baseline


def _replaced(new: Path, console: CompareConsole) -> Side | None:
    """The baseline to replace; None if it cannot be read."""
    try:
        return read_baseline(new)
    except UserError as error:
        console.note(message("compare.unreadable_left", text=console.t.message(error.text)))
        return None
