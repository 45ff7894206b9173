"""What a run is held against once it has ended: a baseline, a gate, or both."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiment.compare.baseline import check_unchanged, read_any
from experiment.compare.gate import Judged, Limit, judge, needs_baseline, read_gate
from experiment.compare.results import Comparison, Side
from experiment.compare.sides import compare_sides
from experiment.files.shipped import find_config
from experiment.text.errors import ExitCode, user_error

if TYPE_CHECKING:
    from experiment.report.console.compare import CompareConsole

PAGE, DATA, TABLE = "compare.html", "compare.json", "compare.csv"


@dataclass(frozen=True, slots=True)
class Checks:
    """What was asked for; read before anything runs, so that a slip costs no run."""

    baseline: Side | None
    limits: tuple[Limit, ...] | None

    @property
    def any(self) -> bool:
        """Whether anything was asked for."""
        return self.baseline is not None or self.limits is not None


NO_CHECKS = Checks(None, None)


def read_checks(baseline: str | None, gate: str | None, before: bool = False) -> Checks:
    """Read the files of ``--baseline`` and ``--gate``; ``before``: another run is the baseline.

    Raises:
        UserError: one of them cannot be used, or the gate needs a baseline that was not given.
    """
    limits = read_gate(find_config(gate)) if gate is not None else None
    side = read_any(_find_baseline(baseline)) if baseline is not None else None
    if limits is not None and side is None and not before and needs_baseline(limits):
        raise user_error("error.gate.needs_baseline", path=gate)
    return Checks(side, limits)


def _find_baseline(name: str) -> Path:
    path = Path(name)
    return path if path.exists() else find_config(name, ".json")


def check_run(
    directory: Path, side: Side, checks: Checks, code: int, lang: str, ascii_only: bool
) -> int:
    """Compare a run, which is ``side``, with its baseline, judge its gate, and say so.

    Returns ``code`` where the run itself went wrong, else whether the gate holds.
    """
    from experiment.report.console.compare import CompareConsole

    console = CompareConsole(lang, ascii_only)
    if checks.baseline is not None:
        comparison = compare_sides(checks.baseline, side)
        console.show(comparison)
        console.written(write_comparison(directory, comparison, lang))
    gate = judge_gate(checks, side, console) if checks.limits is not None else ExitCode.OK
    return code if code != ExitCode.OK else gate


def judge_gate(checks: Checks, side: Side, console: CompareConsole) -> int:
    """Judge the limits, print the table and hand it to a CI job that asks; the gate's exit code.

    Raises:
        UserError: a file of either run was changed after it was written, or the summary of the CI
            job cannot be written.
    """
    from experiment.report.files.gate_markdown import gate_markdown
    from experiment.report.files.markdown import summarise_job

    for one in (checks.baseline, side):
        if one is not None:
            check_unchanged(one)
    judged = judge(checks.limits or (), side, checks.baseline)
    console.gate(judged)
    summarise_job(gate_markdown(console.t, judged))
    return gate_code(judged)


def gate_code(judged: list[Judged]) -> int:
    """Passed only where every limit did."""
    return ExitCode.OK if all(one.verdict == "passed" for one in judged) else ExitCode.GATE


def write_comparison(directory: Path, comparison: Comparison, lang: str) -> list[Path]:
    """Write the page, the data and the table.

    Raises:
        UserError: they cannot be written.
    """
    from experiment.report.pages.compare import compare_csv, compare_html
    from experiment.report.pages.index import write_listed

    table = compare_csv(comparison)
    data = json.dumps(comparison.model_dump(mode="json"), ensure_ascii=False, indent=1)
    page = compare_html(comparison, table, lang)
    return write_listed(directory, {PAGE: page, DATA: data + "\n", TABLE: table}, lang)
