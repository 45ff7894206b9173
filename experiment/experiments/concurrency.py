"""1 to 32 requests at a time, a new one whenever one ends: throughput, latency, saturation.

    4 at a time   0 ────────┐ 4 ───┐ 6 ──
                  1 ───┐ 5 ───────────┐          the same requests in every cell
                  2 ──────┐ ...                  (engine.max_num_seqs is what varies)
                  3 ─────────┐ ...

A padded batch takes so many rows and ends with its longest. One after another is the same in every
cell and runs in the first one. Latency counts from when a request's turn comes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment
from experiment.experiments.found import Faster, Found, over, rate_spread, ratio, timed, untested
from experiment.experiments.results import CellResult, Finding
from experiment.messages import message

_NAME = "concurrency"
_ONE_BY_ONE = ("contiguous.sequential", "contiguous.growing")
_MANY = ("contiguous.batch", "slabs", "paged", "transformers_paged", "vllm")
# Less more throughput than this from one number to the next is called none.
_MORE = 1.1


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    pattern, count = options["lengths"], options["requests"]
    lengths = [pattern[index % len(pattern)] for index in range(count)]
    many = tuple(arm for arm in config.arm_names if arm not in _ONE_BY_ONE)
    cells = []
    for index, limit in enumerate(config.experiment.values):
        overrides = {"engine.max_num_seqs": limit, "workload.lengths": lengths}
        arms = many if index and many else config.arm_names
        cells.append(Cell({"concurrency": limit}, overrides, arms))
    return cells


def _findings(found: Found) -> list[Finding]:
    steps = [_batching(found), _engine(found), _paging(found)]
    return [*steps, *(_saturation(found, arm) for arm in _MANY if _ran(found, arm))]


def _batching(found: Found) -> Finding:
    """From one request after another to a padded batch."""
    cells = found.cells
    if not cells:
        return untested("batching")
    base = found.figure(cells[0], "contiguous.sequential", "tokens_per_s")
    seen = [
        (cell, faster)
        for cell in cells
        if (faster := ratio(found.figure(cell, "contiguous.batch", "tokens_per_s"), base))
    ]
    return _gain(found, "batching", seen, "contiguous.batch")


def _engine(found: Found) -> Finding:
    """From a padded batch to slabs of our engine: scheduling and kernels."""
    return _gain(found, "engine", _faster(found, "slabs", "contiguous.batch"), "slabs")


def _paging(found: Found) -> Finding:
    """From slabs to blocks: paging alone."""
    return _gain(found, "paging", _faster(found, "paged", "slabs"), "paged")


def _faster(found: Found, arm: str, base: str) -> list[tuple[CellResult, Faster]]:
    return [
        (cell, faster)
        for cell in found.with_arms(arm, base)
        if (faster := found.ratio(cell, "tokens_per_s", arm, base)) is not None
    ]


def _gain(found: Found, name: str, seen: list[tuple[CellResult, Faster]], arm: str) -> Finding:
    """At the most at a time; how many rows ran is said too, where memory allowed fewer."""
    if not seen:
        return untested(name)
    cell, faster = seen[-1]
    told = {
        "concurrency": cell.values["concurrency"],
        "running": found.value(cell, arm, "running_mean"),
        "peak": found.value(cell, arm, "running_peak"),
        "over": over([(int(c.values["concurrency"]), each) for c, each in seen]),
    }
    return timed(_NAME, name, faster, told)


def _saturation(found: Found, arm: str) -> Finding:
    """From which number on more at a time brings no more throughput."""
    rates = [
        (int(cell.values["concurrency"]), float(rate))
        for cell in found.cells
        if (rate := found.value(cell, arm, "tokens_per_s")) is not None
    ]
    if len(rates) < 2:  # one number alone neither grows nor stays
        return untested(f"saturation_{arm.replace('.', '_')}")
    best = max(rates, key=lambda pair: pair[1])
    at_best = found.figure(
        next(cell for cell in found.cells if cell.values["concurrency"] == best[0]),
        arm, "tokens_per_s",
    )  # fmt: skip
    assert at_best is not None
    still = next((one[0] for one, more in pairwise(rates) if more[1] < one[1] * _MORE), None)
    key = "still" if still is None else "from"
    figures = {"concurrency": still or rates[-1][0], "rate": best[1], "best": best[0],
               "spread": rate_spread(at_best)}  # fmt: skip
    name = message(f"arm_name.{arm.replace('.', '_')}").model_dump()
    text = message(f"experiments.concurrency.saturation_{key}", arm=name, **figures)
    return Finding(id=f"saturation_{arm.replace('.', '_')}", verdict=None, text=text)


def _ran(found: Found, arm: str) -> bool:
    cells = found.with_arms(arm)
    return any(found.value(cell, arm, "tokens_per_s") is not None for cell in cells)


CONCURRENCY = Experiment(
    name=_NAME,
    cells=_cells,
    figures=("tokens_per_s", "service_s", "per_token_s", "running_peak", "running_mean", "steps"),
    charts=("tokens_per_s", "service_s", "running_mean"),
    findings=_findings,
    without={"contiguous.growing": "like_sequential"},
)
