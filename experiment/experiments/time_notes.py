"""What to know of a run before believing its times: noise, repeats, and who took turns."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.analysis.experiment_results import CellResult, FigureValue
from experiment.config.schema import ROUNDS_ENOUGH, Config, ExperimentConfig, percent_of
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import FEWEST
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


def margin_notes(cells: Sequence[CellResult], asked: ExperimentConfig) -> list[Message]:
    """A note on those that took turns, and one on those that did not.

    None where there are no two times to be held against each other, or where no margin is asked.
    """
    groups = [arm.turns for cell in cells for arm in cell.arms if arm.status == "finished"]
    enough = asked.repeats >= ROUNDS_ENOUGH
    apart = asked.process_margin
    within, option = (asked.interleaved_margin, "turns_margin") if enough else (apart, "margin")
    together = {group for group in groups if group is not None and groups.count(group) > 1}
    notes = []
    if together and within:
        told = {"percent": percent_of(within), "option": f"experiment.{option}"}
        notes.append(message("experiments.note.turns", **told))
    alone = len(groups) > 1 and set(groups) != together
    if apart and (alone or len(together) > 1):
        notes.append(message("experiments.note.margin", percent=percent_of(apart)))
    return notes


def _times(cells: Sequence[CellResult]) -> bool:
    """Whether any time was measured again and again."""
    return any(
        figure.values for cell in cells for arm in cell.arms for figure in arm.figures.values()
    )


def time_notes(cells: Sequence[CellResult], config: Config) -> list[Message]:
    """What to know before believing a time."""
    noise = noise_note(cells)
    notes = [noise] if noise else []
    if config.experiment.repeats < FEWEST:
        told = {"n": config.experiment.repeats, "least": FEWEST}
        notes.append(message("experiments.note.few_repeats", **told))
    elif _times(cells):
        notes += margin_notes(cells, config.experiment)
    if config.experiment.size == "quick":
        notes.append(message("experiments.note.quick", repeats=config.experiment.repeats))
    return notes
