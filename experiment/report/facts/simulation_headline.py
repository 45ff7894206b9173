"""Headline of a simulation: how much of the allocated memory was live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiment.report.facts.simulation_cells import PolicyCell, cells_of
from experiment.report.facts.simulation_figures import waste_share
from experiment.text.messages import Message, message
from kvsim.sim.config import CONTIGUOUS


def headline(data: Mapping[str, Any]) -> Message:
    """Compare a paged with a contiguous policy, if both ran."""
    chosen = headline_cells(cells_of(data))
    if len(chosen) == 2:
        return message("sim.headline.two", **_params("", chosen[0]), **_params("other_", chosen[1]))
    if chosen:
        return message("sim.headline.one", **_params("", chosen[0]))
    return message("sim.headline.none")


def headline_cells(cells: Sequence[PolicyCell]) -> list[PolicyCell]:
    """The first paged policy and the contiguous baseline (slabs), as far as they ran."""
    ran = [cell for cell in cells if cell.result is not None]
    paged = [cell for cell in ran if cell.policy not in CONTIGUOUS]
    others = [cell for cell in ran if cell.policy in CONTIGUOUS]
    others.sort(key=lambda cell: (cell.policy != "slabs", cell.policy != "max"))
    return [*paged[:1], *others[:1]]


def used_share(cell: PolicyCell) -> float | None:
    """Live / allocated, means over time."""
    wasted = waste_share(cell.result) if cell.result is not None else None
    return None if wasted is None else 1 - wasted


def _params(prefix: str, cell: PolicyCell) -> dict[str, Any]:
    assert cell.result is not None
    return {
        f"{prefix}policy": cell.policy,
        f"{prefix}share": used_share(cell),
        f"{prefix}running": cell.result["running"]["mean"],
    }
