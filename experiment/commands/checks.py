"""Check a run against a baseline and a gate: print, write, return an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiment.compare.checks import Checks
from experiment.compare.gate import GateResult
from experiment.compare.results import Side
from experiment.compare.sides import compare_sides
from experiment.files.bounded_reading import evaluating
from experiment.text.errors import ExitCode

if TYPE_CHECKING:
    from experiment.report.console.compare import CompareConsole


def check_run(
    directory: Path, side: Side, checks: Checks, code: int, lang: str, ascii_only: bool
) -> int:
    """Compare the run ``side`` with its baseline, and judge its gate.

    Returns the exit code of the gate, or ``code`` if the run itself failed.
    """
    from experiment.report.console.compare import CompareConsole

    console = CompareConsole(lang, ascii_only)
    if checks.baseline is not None:
        show_comparison(directory, checks.baseline, side, console)
    gate = judge_gate(checks, side, console)
    return code if code != ExitCode.OK else gate


def show_comparison(directory: Path, left: Side, right: Side, console: CompareConsole) -> None:
    """Compare two sides, print the comparison and write its reports.

    Raises:
        UserError: a side contradicts itself, or the reports cannot be written.
    """
    from experiment.report.files.write import write_listed
    from experiment.report.pages.compare import compare_reports

    lang = console.t.lang
    with evaluating(f"{left.name}, {right.name}"):
        comparison = compare_sides(left, right)
        console.show(comparison)
        console.written(*write_listed(directory, compare_reports(comparison, lang), lang))


def judge_gate(checks: Checks, side: Side, console: CompareConsole) -> int:
    """Judge the limits, if any; print the table and add it to the summary of a CI job.

    Raises:
        UserError: a file of either run was changed, or the summary of the CI job cannot be written.
    """
    from experiment.report.facts.compare import gate_text
    from experiment.report.files.markdown import summarise

    if checks.limits is None:
        return ExitCode.OK
    with evaluating(side.name):
        judged = checks.judge(side)
        console.gate(judged)
        summarise(gate_text(console.t, judged))
    return gate_code(judged)


def gate_code(judged: list[GateResult]) -> int:
    """Exit code of a gate: OK only if every limit passed."""
    return ExitCode.OK if all(one.verdict == "passed" for one in judged) else ExitCode.GATE
