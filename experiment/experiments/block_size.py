"""Block sizes from 1 to 256: waste in the last block of requests, cost of small blocks."""

from __future__ import annotations

from itertools import pairwise

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.config.schema import CacheConfig, Config
from experiment.experiments.base import Experiment, cell_of, contiguous, without_blocks_of
from experiment.experiments.cells import Cell
from experiment.experiments.findings import (
    doubt,
    fact,
    factor_side,
    judged,
    note,
    series,
    undecided,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found, Place
from experiment.experiments.labels import axis_label, same_in, side_label
from experiment.text.messages import Message

_NAME, _AXIS = "block-size", "block_size"
# The default, which the other experiments use.
_USUAL: int = CacheConfig.model_fields["block_size"].default
_OTHERS = ("transformers_paged", "vllm")


def _cells(config: Config) -> list[Cell]:
    cells = []
    for size in config.experiment.values:
        absent = without_blocks_of(int(size), config.run.device)
        cells.append(cell_of(config, {"block_size": size}, {"cache.block_size": size}, absent))
    return [cell for cell in cells if cell is not None]


def _findings(found: Found) -> list[Finding]:
    others = (_other(found, arm) for arm in _OTHERS)
    return [_waste(found), _table(found), _speed(found), *(each for each in others if each)]


def _waste(found: Found) -> Finding:
    """Whether smaller blocks waste less; with few requests two sizes may waste the same."""
    row = series(found, found.cells, "waste", "paged", _AXIS)
    known = [each.value for each in row.sides if each.value is not None]
    if len(known) < 2:
        return untested("waste", _one_size(found))
    rises = all(a <= b for a, b in pairwise(known)) and known[0] < known[-1]
    return judged("waste", row, rises, against=why("sizes"))


def _one_size(found: Found) -> Message | None:
    few = len(found.config.experiment.values) < 2
    return why("needs", option="experiment.values", values=2) if few else None


def _table(found: Found) -> Finding:
    cells = list(found.with_arms("paged"))
    ends = [found.value(cell, "paged", "table_entries") for cell in (*cells[:1], *cells[-1:])]
    if len(cells) < 2 or not all(ends):
        return untested("table", _one_size(found))
    return fact("table", series(found, cells, "table_entries", "paged", _AXIS))


def _speed(found: Found) -> Finding:
    """Whether the smallest blocks are slower than larger ones.

    Shown if they are clearly slower than most other sizes, and clearly faster than none.
    """
    cells = sorted(found.with_arms("paged"), key=lambda cell: cell.block_size)
    if len(cells) < 2:
        return untested("speed", _one_size(found))
    smallest, *larger = cells
    seen = [(cell, found.compared(_step(smallest), _step(cell))) for cell in larger]
    known = [(cell, factor) for cell, factor in seen if factor is not None]
    decisive = [factor for _, factor in known if factor.enough]
    row = series(found, cells, "step_s", "paged", _AXIS)
    if not decisive:
        reason = known[0][1].reason if known else None
        return undecided("speed", row, reason=reason) if reason else untested("speed")
    clear = [each.factor > 1 for each in decisive if each.clear]
    sizes = [factor_side(side_label(_AXIS, cell.block_size), factor) for cell, factor in known]
    each = Compared(
        figure=note(_NAME, "beside", size=smallest.block_size),
        at=axis_label(_AXIS), sides=sizes, reason=doubt(known),
    )  # fmt: skip
    notes = [note(_NAME, "speed_rule")]
    shown = all(clear) and len(clear) * 2 > len(decisive)
    return judged("speed", each, shown, row, _usual(found), against=why("sizes"), notes=notes)


def _step(cell: CellResult) -> Place:
    return cell, "paged", "step_s"


def _usual(found: Found) -> Compared | None:
    """Compare the default size with the fastest; None if they are the same."""
    rates = [
        (rate, cell)
        for cell in found.with_arms("paged")
        if (rate := found.value(cell, "paged", "tokens_per_s")) is not None
    ]
    usual = next((cell for _, cell in rates if cell.block_size == _USUAL), None)
    best = max(rates, key=lambda each: each[0])[1] if rates else None
    if usual is None or best is None or best is usual:
        return None
    return versus(found, (usual, "paged", "tokens_per_s"), (best, "paged", "tokens_per_s"))


def _other(found: Found, arm: str) -> Finding | None:
    """Compare another engine's waste with ours, at the block sizes that it supports."""
    names = (arm, "paged")
    cells = [
        cell
        for cell in found.with_arms(*names)
        if None not in [found.value(cell, name, "waste") for name in names]
    ]
    if len(cells) < 2:
        return None
    rows = (series(found, cells, "waste", name, _AXIS) for name in names)
    return fact(arm, *rows, title=same_in(arm))


BLOCK_SIZE = Experiment(
    name=_NAME,
    cells=_cells,
    figures=("waste", "table_entries", "allocated_mean", "running_peak", "step_s", "tokens_per_s"),
    charts=("waste", "table_entries", "step_s"),
    findings=_findings,
    without={**contiguous("no_blocks"), "slabs": "no_blocks"},
)
