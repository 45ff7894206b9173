"""Shares of blocks that sharing saved, beside those of the PagedAttention paper's Fig. 15."""

from __future__ import annotations

from collections.abc import Mapping

from experiment.experiments.found import Found, judged, untested
from experiment.experiments.results import CellResult, Finding


def saved_shares(found: Found) -> list[tuple[CellResult, float]]:
    """Each cell whose saved share is known, with it."""
    known = ((cell, found.value(cell, "paged", "saved")) for cell in found.cells)
    return [(cell, float(saved)) for cell, saved in known if saved is not None]


def like_the_paper(
    found: Found, name: str, value: str, paper: Mapping[int, float], within: float, **more: object
) -> Finding:
    """Whether every cell saved about what the paper did at the same ``value``."""
    pairs = [
        (share, paper[int(cell.values[value])])
        for cell, share in saved_shares(found)
        if cell.values[value] in paper
    ]
    if not pairs:
        return untested("paper")
    near = all(abs(share - said) <= within for share, said in pairs)
    figures = {
        "shares": ", ".join(f"{share * 100:.2f} %" for share, _ in pairs),
        "paper": ", ".join(f"{said * 100:.2f} %" for _, said in pairs),
    }
    return judged(name, "paper", near, within=within, **figures, **more)
