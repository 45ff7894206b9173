"""What a run says of how far its times can be told apart, as its arms took turns or did not."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.config import ROUNDS_ENOUGH, ExperimentConfig, percent_of
from experiment.experiments.results import CellResult
from experiment.messages import Message, message


def margin_notes(cells: Sequence[CellResult], asked: ExperimentConfig) -> list[Message]:
    """One note where all arms took turns, or none did; two where they did so in several groups.

    None where there are no two times to be held against each other, or where no margin is asked.
    """
    arms = [arm for cell in cells for arm in cell.arms if arm.status == "finished"]
    if len(arms) < 2 or not asked.apart:
        return []
    groups = {arm.turns for arm in arms}
    apart = percent_of(asked.apart)
    notes = []
    if groups - {None}:
        enough = asked.repeats >= ROUNDS_ENOUGH
        percent = percent_of(asked.apart_in_turns) if enough else apart
        name = "turns" if enough else "turns_few"
        notes.append(message(f"experiments.note.{name}", percent=percent, least=ROUNDS_ENOUGH))
    if len(groups) > 1:
        notes.append(message("experiments.note.groups", percent=apart))
    return notes or [message("experiments.note.margin", percent=apart)]
