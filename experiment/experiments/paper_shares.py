"""Shares of blocks that sharing saved, beside the PagedAttention paper's Fig. 15 and slabs."""

from __future__ import annotations

from collections.abc import Mapping

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.experiments.findings import (
    fact,
    factors,
    judged,
    ratios,
    same_outputs,
    series,
    side,
    untested,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import axis_label, side_label
from experiment.text.messages import Message, message


def saved_shares(found: Found) -> list[tuple[CellResult, float]]:
    """Each cell whose saved share is known, with it."""
    known = ((cell, found.value(cell, "paged", "saved")) for cell in found.cells)
    return [(cell, float(saved)) for cell, saved in known if saved is not None]


def beside_the_paper(
    found: Found, axis: str, paper: Mapping[int, float], *beside: Compared
) -> Finding:
    """What every cell saved, beside what the paper prints for the same setting.

    The paper's requests and model are others, so that it is no prediction and gives no verdict.
    """
    cells = [cell for cell, _ in saved_shares(found) if cell.values[axis] in paper]
    if not cells:
        settings = ", ".join(map(str, paper))
        return untested("paper", why("paper", settings=settings) if saved_shares(found) else None)
    shares = {at: paper[at] for cell in cells if (at := int(cell.values[axis]))}
    printed = shares_row(message("experiments.side.paper"), axis, shares)
    return fact("paper", series(found, cells, "saved", "paged", axis), printed, *beside)


def shares_row(name: Message, axis: str, shares: Mapping[int, float]) -> Compared:
    """Shares that something else than an arm says, by the setting."""
    sides = [side(side_label(axis, at), "saved", share) for at, share in shares.items()]
    return Compared(figure=name, at=axis_label(axis), sides=sides)


def beside_slabs(found: Found, axis: str) -> list[Finding]:
    """What slabs save where their requests share as blocks do; nothing where none ran.

    Of a slab all of it is shared or, from the first write on, nothing, and it is copied whole.
    """
    cells = [cell for cell, _ in saved_shares(found) if found.figure(cell, "slabs", "saved")]
    if not cells:
        return []
    slabs, paged = (series(found, cells, "saved", arm, axis) for arm in ("slabs", "paged"))
    pairs = zip(slabs.sides, paged.sides, strict=True)
    less = all((one.value or 0) < (other.value or 0) for one, other in pairs)
    rates = ratios(found, cells, "tokens_per_s", "paged", "slabs")
    copied = (series(found, cells, "copied_slots", arm, axis) for arm in ("slabs", "paged"))
    same = same_outputs(
        (one.outputs, other.outputs)
        for cell in cells
        if (one := cell.arm("slabs")) and (other := cell.arm("paged"))
    )
    over = factors(rates, "tokens_per_s", "paged", "slabs", axis, least=1)
    beside, title = (paged, *copied, over, same), message("experiments.found.shares")
    return [judged("slabs", slabs, less, *beside, against=why("opposite"), title=title)]
