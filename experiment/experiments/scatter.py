"""How far repeats of what was timed lie apart, and a note where that is too far."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.analysis.experiment_results import CellResult, FigureValue
from experiment.experiments.figures import FIGURES
from experiment.text.messages import Message, message

# Repeats of a time that lie further apart than this share of their median are worth a warning.
NOISY = 0.2


def noise_note(cells: Sequence[CellResult]) -> Message | None:
    """How many of all times scatter, and the worst of them; None: none does."""
    spreads = [
        value.spread
        for cell in cells
        for arm in cell.arms
        for name, value in arm.figures.items()
        if value.spread is not None and _tells(name, value)
    ]
    noisy = [spread for spread in spreads if spread > NOISY]
    if not noisy:
        return None
    figures = {"n": len(noisy), "of": len(spreads), "worst": max(noisy), "limit": NOISY}
    return message("experiments.note.noisy", **figures)


def _tells(name: str, value: FigureValue) -> bool:
    """Whether its spread tells of noise.

    A share may be next to nothing, and no spread is small beside that: one that comes of times does
    where all of its repeats are more than nothing. What is counted says nothing of times.
    """
    if FIGURES[name].about.unit != "share":
        return True
    return FIGURES[name].about.kind == "time" and min(value.values) > 0
