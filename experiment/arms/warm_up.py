"""Warm-up of arms that do not use our engine: off the clock, and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from experiment.arms.base import ArmRun
from experiment.events import ProfileRun


@contextmanager
def recorded_warm_up(run: ArmRun, prompts: Sequence[int]) -> Iterator[None]:
    """Pause the clock during the warm-up, and record its size and duration.

    Args:
        prompts: lengths in tokens.
    """
    began = time.perf_counter()
    with run.paused():
        yield
        run.synchronize()
    seconds = time.perf_counter() - began
    done = {"prompt_tokens": sum(prompts), "requests": len(prompts), "seconds": seconds}
    run.emit(ProfileRun(arm=run.task.arm, kept=False, **done))
