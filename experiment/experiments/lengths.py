"""The same tokens as short, mixed and long requests: where slabs waste, and where they do not.

    short   [16+16] x 64                          a slab of 512 for 31 slots
    mixed   [16+16] [32+32] [96+64] [192+64] x 4
    long    [384+128] x 4                         a slab of 512 for 511: nothing left to gain

``options.<shape>`` are the (prompt, new) of a shape in turn, until ``options.total`` tokens.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment
from experiment.experiments.found import Found, judged_as, untested
from experiment.experiments.results import CellResult, Finding
from experiment.messages import message

_NAME = "lengths"
# Fewer more at a time than this is called none. Waste alone is no gain while nobody waits for it.
_MORE = 1.05


def _cells(config: Config) -> list[Cell]:
    options: dict[str, Any] = config.experiment.options
    return [
        Cell({"shape": shape}, {"workload.lengths": fill(options[str(shape)], options["total"])})
        for shape in config.experiment.values
    ]


def fill(pattern: list[list[int]], total: int) -> list[list[int]]:
    """The lengths of ``pattern`` in turn, as long as all tokens together stay within ``total``."""
    chosen: list[list[int]] = []
    used = 0
    for pair in cycle(pattern):
        used += sum(pair)
        if used > total:
            break
        chosen.append(list(pair))
    return chosen


def _findings(found: Found) -> list[Finding]:
    return [_gain(found, cell) for cell in found.cells]


def _gain(found: Found, cell: CellResult) -> Finding:
    """What blocks change for one shape: waste and requests at a time, and what time makes of it."""
    shape = str(cell.values["shape"])
    figures: dict[str, Any] = {
        f"{arm}_{name}": found.value(cell, arm, name)
        for arm in ("slabs", "paged")
        for name in ("waste", "running_peak")
    }
    faster = found.ratio(cell, "tokens_per_s", "paged", "slabs")
    if None in figures.values() or faster is None:
        return untested(shape)
    more = figures["paged_running_peak"] > figures["slabs_running_peak"] * _MORE
    speed = "faster" if faster.factor > 1 else "slower"
    said = message(f"experiments.lengths.{speed if faster.clear else 'same'}", factor=faster.factor)
    told = {"requests": cell.requests, "speed": said.model_dump()}
    return judged_as(_NAME, shape, "gain", more, **told, **figures)


LENGTHS = Experiment(
    name=_NAME,
    cells=_cells,
    figures=("waste", "running_peak", "running_mean", "steps", "tokens_per_s", "latency_s"),
    charts=("waste", "running_peak", "tokens_per_s"),
    findings=_findings,
)
