"""Shares of blocks that sharing saved, beside those of the PagedAttention paper's Fig. 15."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from experiment.experiments.found import Found, fact, untested
from experiment.experiments.results import CellResult, Finding
from experiment.messages import Message


def saved_shares(found: Found) -> list[tuple[CellResult, float]]:
    """Each cell whose saved share is known, with it."""
    known = ((cell, found.value(cell, "paged", "saved")) for cell in found.cells)
    return [(cell, float(saved)) for cell, saved in known if saved is not None]


def beside_the_paper(
    found: Found, name: str, axis: str, paper: Mapping[int, float], *more: Message
) -> Finding:
    """What every cell saved, beside what the paper prints for the same setting.

    The paper's requests and model are others, so that it is no prediction and gives no verdict.
    """
    seen = [
        (int(cell.values[axis]), share)
        for cell, share in saved_shares(found)
        if cell.values[axis] in paper
    ]
    if not seen:
        return untested("paper")
    told = {
        "settings": ", ".join(str(at) for at, _ in seen),
        "shares": listed(share for _, share in seen),
        "paper": listed(paper[at] for at, _ in seen),
    }
    return fact(name, "paper", "seen", *more, **told)


def listed(shares: Iterable[float]) -> str:
    """Shares as text."""
    return ", ".join(f"{share * 100:.2f} %" for share in shares)
