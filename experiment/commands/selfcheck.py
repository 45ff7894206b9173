"""``selfcheck``: check the measuring instruments."""

from __future__ import annotations

import argparse

from experiment.machine.packages import check_installed
from experiment.process.environment import check_addresses
from experiment.text import Translator
from experiment.text.errors import ExitCode


def selfcheck(options: argparse.Namespace, t: Translator) -> int:
    """Print measured and actual values of each check; return non-zero if one failed.

    Raises:
        UserError: the checks could not be run.
    """
    check_installed()
    check_addresses()
    from experiment.report.console.lines import Console
    from experiment.report.console.selfcheck import show_checks
    from experiment.selfcheck.checks import check_instrument

    console = Console(t.lang, options.ascii)
    console.section("section.selfcheck")
    checks = check_instrument()
    show_checks(console, checks)
    judged = [check for check in checks if check.passed is not None]
    return ExitCode.OK if judged and all(c.passed for c in judged) else ExitCode.INCOMPLETE
