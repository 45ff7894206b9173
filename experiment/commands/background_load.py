"""Whether other programs keep the machine busy, said once before anything is measured."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from experiment.machine import background_load as noise
from experiment.process.interrupts import read_answer
from experiment.text.messages import Message, message

_WAIT = "w"


def may_ask(yes: bool) -> bool:
    """Whether a person sits at a terminal and did not say ``--yes``; in CI nobody does."""
    return not (yes or os.environ.get("CI")) and sys.stdin.isatty() and sys.stdout.isatty()


def others_before(
    warn: Callable[[Message], None], ask: Callable[[Message], None] | None
) -> float | None:
    """Cores that other programs keep busy; where they do, say so and offer to wait.

    Call it while no process of this program works.

    Args:
        warn: prints what was seen.
        ask: prints the question; None: nobody is asked, and the command goes on.

    Returns:
        What is seen in the end; None where the system does not tell.
    """
    cores = noise.min_background_load()
    if not noise.is_busy(cores):
        return cores
    warn(message(noise.BUSY_BEFORE, cores=cores))
    if ask is None:
        return cores
    ask(message("quiet.ask"))
    if read_answer(input).strip().lower() == _WAIT:
        warn(message("quiet.waiting"))
        cores = noise.wait_until_quiet()
    return cores
