"""Checks of ``selfcheck`` on the console."""

from __future__ import annotations

from rich.text import Text

from experiment.events import Check
from experiment.report.console.lines import Console

_VERDICTS: dict[bool | None, tuple[str, str]] = {
    True: ("gpucheck.check_passed", "green"),
    False: ("gpucheck.check_failed", "bold red"),
    None: ("gpucheck.check_not_judged", "dim"),
}


def show_checks(console: Console, checks: list[Check]) -> None:
    """Print each check with its verdict, and the number of failed ones."""
    t = console.t
    table = console.table(t("gpucheck.column_check"), t("console.verdict"))
    for check in checks:
        verdict, style = _VERDICTS[check.passed]
        table.add_row(Text(t.message(check.text)), Text(t(verdict), style))
    console.console.print(table)
    failed = sum(check.passed is False for check in checks)
    judged = sum(check.passed is not None for check in checks)
    key = "some_failed" if failed else "all_passed" if judged else "none_judged"
    console.paragraph(t(f"selfcheck.{key}", n=failed, of=judged))
