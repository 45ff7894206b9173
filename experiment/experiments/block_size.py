"""Block sizes from 1 to 256: what the last block of each request wastes, what small ones cost."""

from __future__ import annotations

from itertools import pairwise

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment, cell_of, contiguous, without_blocks_of
from experiment.experiments.found import Found, detail, fact, judged, timed, untested
from experiment.experiments.results import Finding
from experiment.messages import Message, arm_message

_NAME = "block-size"
_USUAL = 16
_OTHERS = ("transformers_paged", "vllm")


def _cells(config: Config) -> list[Cell]:
    cells = [
        cell_of(
            config, {"block_size": size}, {"cache.block_size": size}, without_blocks_of(int(size))
        )
        for size in config.experiment.values
    ]
    return [cell for cell in cells if cell is not None]


def _findings(found: Found) -> list[Finding]:
    others = (_other(found, arm) for arm in _OTHERS)
    return [_waste(found), _table(found), _speed(found), *(each for each in others if each)]


def _waste(found: Found) -> Finding:
    """Whether smaller blocks waste less, size by size."""
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
    """Whether the smallest blocks are slower than the usual size."""
    cells = list(found.with_arms("paged"))
    usual = next((cell for cell in cells if cell.block_size == _USUAL), None)
    if usual is None or cells[0] is usual:
        return untested("speed", _no_smaller(found))
    slower = found.compared((cells[0], "paged", "step_s"), (usual, "paged", "step_s"))
    return timed(_NAME, "speed", slower, {"size": cells[0].block_size, "usual": _USUAL})


def _no_smaller(found: Found) -> Message | None:
    """Where the sizes that were asked for have no two to compare."""
    sizes = found.config.experiment.values
    if _USUAL in sizes and min(map(float, sizes)) < _USUAL:
        return None
    return detail(_NAME, "speed_sizes", usual=_USUAL)


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
