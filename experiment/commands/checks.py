"""What a run comes to against a baseline and a gate: shown, written, an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiment.compare.checks import Checks
from experiment.compare.gate import Judged
from experiment.compare.results import Side
from experiment.compare.sides import compare_sides
from experiment.files.bounded_reading import evaluating
from experiment.text.errors import ExitCode

if TYPE_CHECKING:
    from experiment.report.console.compare import CompareConsole


def check_run(
    directory: Path, side: Side, checks: Checks, code: int, lang: str, ascii_only: bool
) -> int:
    """Compare a run, which is ``side``, with its baseline, judge its gate, and say so.

    Returns ``code`` where the run itself went wrong, else whether the gate holds.
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
    """Judge the limits, if there are any, print the table and hand it to a CI job that asks.

    Raises:
        UserError: a file of either run was changed after it was written, or the summary of the CI
            job cannot be written.
    """
    from experiment.report.files.markup import summarise_job
    from experiment.report.files.tables_markdown import gate_markdown

    if checks.limits is None:
        return ExitCode.OK
    with evaluating(side.name):
        judged = checks.judge(side)
        console.gate(judged)
        summarise_job(gate_markdown(console.t, judged))
    return gate_code(judged)


def gate_code(judged: list[Judged]) -> int:
    """Passed only where every limit did."""
    return ExitCode.OK if all(one.verdict == "passed" for one in judged) else ExitCode.GATE
