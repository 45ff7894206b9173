"""Shares of blocks saved by sharing, compared with the paper's Fig. 15 and with slabs."""

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
    """Cells with a known saved share, and the share (0 to 1)."""
    known = ((cell, found.value(cell, "paged", "saved")) for cell in found.cells)
    return [(cell, float(saved)) for cell, saved in known if saved is not None]


def paper_comparison(
    found: Found, axis: str, paper: Mapping[int, float], *others: Compared
) -> Finding:
    """Compare the saved share of every cell with the paper's for the same setting.

    No verdict, because the paper's requests and model differ.
    """
    cells = [cell for cell, _ in saved_shares(found) if cell.values[axis] in paper]
    if not cells:
        settings = ", ".join(map(str, paper))
        return untested("paper", why("paper", settings=settings) if saved_shares(found) else None)
    shares = {at: paper[at] for cell in cells if (at := int(cell.values[axis]))}
    printed = shares_row(message("experiments.side.paper"), axis, shares)
    return fact("paper", series(found, cells, "saved", "paged", axis), printed, *others)


def shares_row(name: Message, axis: str, shares: Mapping[int, float]) -> Compared:
    """A row of shares (0 to 1) that are not an arm's, by setting."""
    sides = [side(side_label(axis, at), "saved", share) for at, share in shares.items()]
    return Compared(figure=name, at=axis_label(axis), sides=sides)


def slab_comparison(found: Found, axis: str) -> list[Finding]:
    """Compare with sharing in slabs; empty if none ran.

    A slab is shared as a whole, and copied as a whole at the first write.
    """
    cells = [cell for cell, _ in saved_shares(found) if found.figure(cell, "slabs", "saved")]
    if not cells:
        return []
    slabs, paged = (series(found, cells, "saved", arm, axis) for arm in ("slabs", "paged"))
    pairs = zip(slabs.sides, paged.sides, strict=True)
    less = all((one.value or 0) < (other.value or 0) for one, other in pairs)
    rates = ratios(found, cells, "tokens_per_s", "paged", "slabs")
    copied = (series(found, cells, "copied_slots", arm, axis) for arm in ("slabs", "paged"))
    same = same_outputs((cell.arm("slabs"), cell.arm("paged")) for cell in cells)
    over = factors(rates, "tokens_per_s", "paged", "slabs", axis, least=1)
    others, title = (slabs, *copied, over, same), message("experiments.found.shares")
    return [judged("slabs", paged, less, *others, against=why("opposite"), title=title)]
