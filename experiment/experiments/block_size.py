"""Block sizes from 1 to 256: what the last block of each request wastes, what small ones cost."""

from __future__ import annotations

from itertools import pairwise

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import CacheConfig, Config
from experiment.experiments.base import Experiment, cell_of, contiguous, without_blocks_of
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    Faster,
    Found,
    Place,
    beside,
    detail,
    fact,
    judged,
    listed,
    undecided,
    untested,
)
from experiment.text.messages import Message, arm_message

_NAME = "block-size"
# What runs have where no config says another, as the other experiments do.
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
    """Whether smaller blocks waste less; few requests may leave as much in two sizes."""
    cells = list(found.with_arms("paged"))
    shares = [found.value(cell, "paged", "waste") for cell in cells]
    known = [share for share in shares if share is not None]
    if len(known) < 2:
        return untested("waste", _one_size(found))
    rises = all(a <= b for a, b in pairwise(known)) and known[0] < known[-1]
    sizes = {"smallest": cells[0].block_size, "largest": cells[-1].block_size}
    return judged(_NAME, "waste", rises, least=min(known), most=max(known), **sizes)


def _one_size(found: Found) -> Message | None:
    return detail(_NAME, "one_size") if len(found.config.experiment.values) < 2 else None


def _table(found: Found) -> Finding:
    cells = list(found.with_arms("paged"))
    entries = [found.value(cell, "paged", "table_entries") for cell in cells]
    if len(entries) < 2 or not entries[0] or not entries[-1]:
        return untested("table", _one_size(found))
    sizes = {"smallest": cells[0].block_size, "largest": cells[-1].block_size}
    return fact(_NAME, "table", "entries", first=entries[0], last=entries[-1], **sizes)


def _speed(found: Found) -> Finding:
    """Whether the smallest blocks are slower than larger ones, each size beside them.

    They are where they are clearly slower than most of the sizes, and clearly faster than none.
    """
    cells = sorted(found.with_arms("paged"), key=lambda cell: cell.block_size)
    if len(cells) < 2:
        return untested("speed", _one_size(found))
    smallest, *larger = cells
    seen = [
        (cell.block_size, factor)
        for cell in larger
        if (factor := found.compared(_step(smallest), _step(cell))) is not None
    ]
    told = [each for _, each in seen if each.enough]
    if not told:
        return undecided("speed", seen[0][1]) if seen else untested("speed")
    slower = [size for size, each in seen if each.clear and each.factor > 1]
    faster = [size for size, each in seen if each.clear and each.factor < 1]
    factors = listed(_factor(size, each) for size, each in seen)
    rule = detail(_NAME, "speed_rule")
    beside_each = detail(_NAME, "speed_factors", factors=factors)
    more = (beside_each, _ends(found, cells), _usual(found), rule)
    shown = not faster and len(slower) * 2 > len(told)
    than = _than(slower, faster).model_dump()
    return judged(_NAME, "speed", shown, *more, size=smallest.block_size, than=than)


def _step(cell: CellResult) -> Place:
    return cell, "paged", "step_s"


def _than(slower: list[int], faster: list[int]) -> Message:
    """Beside which sizes the smallest are clearly slower, and beside which clearly faster."""
    if not slower and not faster:
        return detail(_NAME, "than_neither")
    key = "both" if slower and faster else "slower" if slower else "faster"
    return detail(_NAME, f"than_{key}", slower=listed(slower), faster=listed(faster))


def _factor(size: int, slower: Faster) -> object:
    told = {"size": size, "note": beside(slower), **slower.told}
    return detail(_NAME, "speed_factor", **told).model_dump()


def _ends(found: Found, cells: list[CellResult]) -> Message | None:
    """Of all sizes the slowest and the fastest, by the medians of a step."""
    steps = [
        (cell, seconds)
        for cell in cells
        if (seconds := found.value(cell, "paged", "step_s")) is not None
    ]
    slow, slow_s = max(steps, key=lambda each: each[1])
    fast, fast_s = min(steps, key=lambda each: each[1])
    factor = found.compared(_step(slow), _step(fast))
    if factor is None or (factor.enough and not factor.clear):
        return None  # who is slowest is not told by repeats that do not tell the two apart
    told = {"slowest": slow.block_size, "slow": slow_s, "fastest": fast.block_size, "fast": fast_s}
    return detail(_NAME, "speed_ends", note=beside(factor), **told, **factor.told)


def _usual(found: Found) -> Message | None:
    """What the size that the other experiments have costs beside the fastest; None: it is that."""
    rates = [
        (cell, rate)
        for cell in found.with_arms("paged")
        if (rate := found.value(cell, "paged", "tokens_per_s")) is not None
    ]
    usual = next((each for each in rates if each[0].block_size == _USUAL), None)
    if usual is None:
        return None
    best = max(rates, key=lambda each: each[1])
    places = [(cell, "paged", "tokens_per_s") for cell in (usual[0], best[0])]
    factor = found.compared(places[0], places[1])
    if best[0] is usual[0] or factor is None:
        return None
    told = {"usual": _USUAL, "rate": usual[1], "best": best[0].block_size, "most": best[1]}
    return detail(_NAME, "speed_usual", note=beside(factor), **told, **factor.told)


def _other(found: Found, arm: str) -> Finding | None:
    """What another engine wastes in blocks of the sizes that it has, beside ours in the same."""
    cells = [
        cell
        for cell in found.with_arms(arm, "paged")
        if None not in (found.value(cell, arm, "waste"), found.value(cell, "paged", "waste"))
    ]
    if len(cells) < 2:
        return None
    ends = {"least": cells[0], "most": cells[-1]}
    told: dict[str, object] = {"sizes": len(cells), "arm": arm_message(arm).model_dump()}
    for name, cell in ends.items():
        told |= {f"{name}_size": cell.block_size, name: found.value(cell, arm, "waste")}
        told[f"own_{name}"] = found.value(cell, "paged", "waste")
    return Finding(id=arm, verdict=None, text=detail(_NAME, "other", **told))


BLOCK_SIZE = Experiment(
    name=_NAME,
    cells=_cells,
    figures=("waste", "table_entries", "allocated_mean", "running_peak", "step_s", "tokens_per_s"),
    charts=("waste", "table_entries", "step_s"),
    findings=_findings,
    without={**contiguous("no_blocks"), "slabs": "one_size"},
)
