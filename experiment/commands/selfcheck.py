"""``selfcheck``: tests the instrument and prints what each check saw."""

from __future__ import annotations

from rich.text import Text

from experiment.events import Check
from experiment.machine.packages import check_installed
from experiment.report.console.lines import Console
from experiment.selfcheck.checks import all_checks, scratch_directory
from experiment.text.errors import ExitCode

_VERDICTS: dict[bool | None, tuple[str, str]] = {
    True: ("selfcheck.passed", "green"),
    False: ("selfcheck.failed", "bold red"),
    None: ("selfcheck.not_judged", "dim"),
}


def selfcheck(lang: str, ascii_only: bool) -> int:
    """Print what each check saw against what was there; non-zero when one failed.

    Raises:
        UserError: the checks could not be made at all.
    """
    check_installed()
    console = Console(lang, ascii_only)
    console.section("section.selfcheck")
    with scratch_directory() as scratch:
        checks = list(all_checks(scratch / "selfcheck.log"))
    show_checks(console, checks)
    judged = [check for check in checks if check.passed is not None]
    return ExitCode.OK if judged and all(c.passed for c in judged) else ExitCode.INCOMPLETE


def show_checks(console: Console, checks: list[Check]) -> None:
    """Print each check with its verdict, and how many failed."""
    t = console.t
    table = console.table(t("selfcheck.check"), t("console.verdict"))
    for check in checks:
        verdict, style = _VERDICTS[check.passed]
        table.add_row(Text(t.message(check.text)), Text(t(verdict), style))
    console.console.print(table)
    failed = sum(check.passed is False for check in checks)
    judged = sum(check.passed is not None for check in checks)
    key = "some_failed" if failed else "all_passed" if judged else "none_judged"
    console.paragraph(t(f"selfcheck.{key}", n=failed, of=judged))
