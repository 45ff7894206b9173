"""The same number of tokens in short, mixed and long requests: waste of slabs.

    short   [16+16] x 64                          a slab of 512 for 31 slots
    mixed   [16+16] [32+32] [96+64] [192+64] x 4
    long    [384+128] x 4                         a slab of 512 for 511: no gain possible

Requests cycle through the (prompt, new) of ``options.<shape>``, up to ``options.total`` tokens.
User-defined shapes have the same name in ``values`` and ``options``.
"""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.analysis.finding_text import param
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, varied
from experiment.experiments.findings import (
    BOTH,
    between,
    fact,
    factors,
    more_at_once,
    note,
    ratios,
    tally,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import SHAPES, value_label
from experiment.workload.requests import check_size

_NAME = "lengths"
# Name of a user-defined shape, which becomes a part of figure ids.
_NAMED = re.compile(r"[\w-]{1,40}")


def _overrides(config: Config, shape: Any) -> dict[str, Any]:
    options: dict[str, Any] = config.experiment.options
    if not _NAMED.fullmatch(str(shape)):
        raise ValueError(f"a shape is named by up to 40 letters, digits, _ and -: {shape!r}")
    return {"workload.lengths": fill(options[str(shape)], options["total"])}


def fill(pattern: list[list[int]], total: int) -> list[list[int]]:
    """Cycle through the lengths of ``pattern`` up to ``total`` tokens in all.

    Raises:
        ValueError: a length below 1.
        UserError: more requests than a run may have.
    """
    if any(tokens < 1 for pair in pattern for tokens in pair):
        raise ValueError(f"lengths are of 1 or more: {pattern}")
    chosen: list[list[int]] = []
    used = 0
    for pair in cycle(pattern):
        used += sum(pair)
        if used > total:
            break
        check_size(len(chosen) + 1, 0)
        chosen.append(list(pair))
    return chosen


def _findings(found: Found) -> list[Finding]:
    return [*(_gain(found, cell) for cell in found.cells), _shapes(found)]


def _shapes(found: Found) -> Finding:
    """All shapes in one row."""
    seen = ratios(found, found.cells, "running_mean", *BOTH)
    row = factors(seen, "running_mean", *BOTH, "shape", least=1)
    return fact("shapes", row)


def _gain(found: Found, cell: CellResult) -> Finding:
    """Effect of blocks on one shape: concurrency, time and waste."""
    shape = str(cell.values["shape"])
    title = note(_NAME, "gain", shape=param(value_label("shape", shape)))
    row, waste = (between(found, cell, name, *BOTH) for name in ("running_mean", "waste"))
    preemptions = tally(found, cell, "paged", "preemptions")
    name = shape if shape in SHAPES else "own"
    known = row if waste and preemptions else None
    return more_at_once(found, name, cell, known, preemptions, first=waste, title=title)


LENGTHS = Experiment(
    name=_NAME,
    cells=varied("shape", _overrides),
    figures=(
        "waste", "running_mean", "running_peak", "preemptions", "steps", "tokens_per_s",
        "latency_s",
    ),
    charts=("running_mean", "waste", "tokens_per_s"),
    findings=_findings,
    values="names",
    options=("total", *SHAPES),
    without={"contiguous.sequential": "one_at_a_time"},
)  # fmt: skip
