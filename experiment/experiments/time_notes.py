"""Notes on the reliability of times: spread, repeats, and interleaving."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.analysis.experiment_results import CellResult, FigureValue
from experiment.config.schema import ROUNDS_ENOUGH, Config, ExperimentConfig, percent_of
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import FEWEST
from experiment.text.messages import Message, message

# Warn of times whose repeats spread by more than this share of their median.
NOISY = 0.2


def noise_note(cells: Sequence[CellResult]) -> Message | None:
    """Number of times with a large spread, and the worst; None without any."""
    spreads = [
        value.spread
        for cell in cells
        for arm in cell.arms
        for name, value in arm.figures.items()
        if value.spread is not None and _has_spread(name, value)
    ]
    noisy = [spread for spread in spreads if spread > NOISY]
    if not noisy:
        return None
    figures = {"n": len(noisy), "of": len(spreads), "worst": max(noisy), "limit": NOISY}
    return message("experiments.note.noisy", **figures)


def _has_spread(name: str, value: FigureValue) -> bool:
    """Whether a relative spread is meaningful.

    For shares only if they derive from times and all repeats are above 0; near 0 any spread is
    relatively large.
    """
    if FIGURES[name].about.unit != "share":
        return True
    return FIGURES[name].about.kind == "time" and min(value.values) > 0


def margin_notes(cells: Sequence[CellResult], section: ExperimentConfig) -> list[Message]:
    """A note on interleaved arms, and one on the others.

    Empty if there are no two times to compare, or the margins are 0.
    """
    groups = [arm.turns for cell in cells for arm in cell.arms if arm.status == "finished"]
    enough = section.repeats >= ROUNDS_ENOUGH
    apart = section.process_margin
    within, option = (section.interleaved_margin, "turns_margin") if enough else (apart, "margin")
    together = {group for group in groups if group is not None and groups.count(group) > 1}
    notes = []
    if together and within:
        params = {"percent": percent_of(within), "option": f"experiment.{option}"}
        notes.append(message("experiments.note.turns", **params))
    alone = len(groups) > 1 and set(groups) != together
    if apart and (alone or len(together) > 1):
        notes.append(message("experiments.note.margin", percent=percent_of(apart)))
    return notes


def time_notes(cells: Sequence[CellResult], config: Config) -> list[Message]:
    """All notes on the reliability of a run's times."""
    noise = noise_note(cells)
    notes = [noise] if noise else []
    figures = (value for cell in cells for arm in cell.arms for value in arm.figures.values())
    if config.experiment.repeats < FEWEST:
        params = {"n": config.experiment.repeats, "least": FEWEST}
        notes.append(message("experiments.note.few_repeats", **params))
    elif any(value.values for value in figures):  # times, measured repeatedly
        notes += margin_notes(cells, config.experiment)
    if config.experiment.size == "quick":
        notes.append(message("experiments.note.quick", repeats=config.experiment.repeats))
    return notes
