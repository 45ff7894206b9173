"""The ladder of arms of an experiment's cell, from all of its repeats: medians, and rounds.

An ordinary run has one time of each arm. Here a factor between two rungs heeds what a finding does:
where repeats do not tell the two apart there is a dash, and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from experiment.analysis.experiment_results import CellResult, FigureValue
from experiment.analysis.gains import BUSY
from experiment.analysis.results import Gain
from experiment.config.schema import Config
from experiment.experiments.cells import CellEvents
from experiment.experiments.found import Found
from experiment.text.messages import Message, message

_RATE = "tokens_per_s"


def repeated_gains(
    gains: Sequence[Gain], cell: CellEvents, result: CellResult, config: Config
) -> list[Gain]:
    """The rungs of a cell's first measured repeat, told of all of them."""
    rates = {gain.arm: _rates(gain, cell) for gain in gains}
    arms = [
        arm.model_copy(update={"figures": {**arm.figures, _RATE: rates[arm.arm]}})
        if arm.arm in rates
        else arm
        for arm in result.arms
    ]
    found = Found(config, [result.model_copy(update={"arms": arms})])
    told = []
    for place, gain in enumerate(gains):
        base = gains[place - 1].arm if place else None
        update = {} if base is None else _step(found, gain.arm, base)
        rate = {_RATE: rates[gain.arm].value or gain.tokens_per_s}
        told.append(gain.model_copy(update=rate | update))
    return told


def _rates(gain: Gain, cell: CellEvents) -> FigureValue:
    """Tokens per second of each measured repeat: all of them generate as many."""
    seconds = [done.generate_s for done in cell.repeats(gain.arm) if not done.warm_up]
    if not seconds or min(seconds) <= 0:
        return FigureValue(value=gain.tokens_per_s)
    rates = [gain.tokens_per_s * seconds[0] / each for each in seconds]
    return FigureValue(value=median(rates), values=list(rates))


def _step(found: Found, arm: str, base: str) -> dict[str, object]:
    """The factor over the rung below, or why there is none."""
    faster = found.ratio(found.cells[0], _RATE, arm, base)
    if faster is None:
        return {}
    why: Message | None = message(BUSY) if faster.busy else None
    if why is None and faster.enough and not faster.clear:
        why = message("gains.not_apart")
    return {"factor": None if why else faster.factor, "reason": why}
