"""As many tokens as short, mixed and long requests: where slabs waste, and where they do not.

    short   [16+16] x 64                          a slab of 512 for 31 slots
    mixed   [16+16] [32+32] [96+64] [192+64] x 4
    long    [384+128] x 4                         a slab of 512 for 511: nothing left to gain

``options.<shape>`` are the (prompt, new) of a shape in turn, until ``options.total`` tokens. A
shape of one's own is shown by the name that it has in ``values`` and ``options``.
"""

from __future__ import annotations

import re
from itertools import cycle
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    Found,
    detail,
    fact,
    in_steps,
    judged_as,
    param,
    speed,
    took_longer,
    untested,
)
from experiment.text.messages import Message, message
from experiment.workload.requests import check_size

_NAME = "lengths"
# Fewer more at a time than this is called none. Waste alone is no gain while nobody waits for it.
_MORE = 1.05
SHAPES = ("short", "mixed", "long")
# Of one's own; it becomes a part of the ids of figures.
_NAMED = re.compile(r"[\w-]{1,40}")


def _cells(config: Config) -> list[Cell]:
    options: dict[str, Any] = config.experiment.options
    cells = []
    for shape in map(str, config.experiment.values):
        if not _NAMED.fullmatch(shape):
            raise ValueError(f"a shape is named by up to 40 letters, digits, _ and -: {shape!r}")
        lengths = fill(options[shape], options["total"])
        cells.append(Cell({"shape": shape}, {"workload.lengths": lengths}))
    return cells


def fill(pattern: list[list[int]], total: int) -> list[list[int]]:
    """The lengths of ``pattern`` in turn, as long as all tokens together stay within ``total``.

    Raises:
        ValueError: a length of less than a token, of which no number would be enough.
        UserError: more requests than a run holds.
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
    return [_shapes(found), *(_titled(_gain(found, cell), cell) for cell in found.cells)]


def _titled(finding: Finding, cell: CellResult) -> Finding:
    """A finding with the name of its shape in its title, where that is one's own."""
    shape = str(cell.values["shape"])
    if shape in SHAPES:
        return finding
    return finding.model_copy(update={"title": detail(_NAME, "own", shape=shape)})


def _shapes(found: Found) -> Finding:
    """Every shape in one line, so that none of them speaks for all."""
    said = [
        message(
            "experiments.lengths.shape",
            shape=param(shape_label(str(cell.values["shape"]))),
            factor=more,
        )
        for cell in found.cells
        if (more := _more(found, cell)) is not None
    ]
    if not said:
        return untested("shapes")
    text = said[0]
    for other in said[1:]:
        text = message("experiments.lengths.shape_and", one=text.model_dump(),
                       other=other.model_dump())  # fmt: skip
    return fact(_NAME, "shapes", "seen", _uneven(found), shapes=text.model_dump())


def shape_label(shape: str) -> Message | str:
    """Name of a shape: one's own is called what its user called it."""
    return message(f"experiments.value.{shape}") if shape in SHAPES else shape


def _uneven(found: Found) -> Message | None:
    """Where whole requests do not fill the total alike: from how many tokens to how many."""
    options: dict[str, Any] = found.config.experiment.options
    total = options["total"]
    sums = [sum(map(sum, fill(options[str(cell.values["shape"])], total))) for cell in found.cells]
    if min(sums) == max(sums):
        return None
    return detail(_NAME, "shapes_uneven", least=min(sums), most=max(sums), total=total)


def _more(found: Found, cell: CellResult) -> float | None:
    """Requests at a time in blocks over those in slabs, both on average over the steps."""
    slabs, paged = (found.value(cell, arm, "running_mean") for arm in ("slabs", "paged"))
    return paged / slabs if slabs and paged else None


def _gain(found: Found, cell: CellResult) -> Finding:
    """What blocks change for one shape: waste and requests at a time, and what time makes of it."""
    shape = str(cell.values["shape"])
    finding = shape if shape in SHAPES else "own"
    figures: dict[str, Any] = {
        f"{arm}_{name}": found.value(cell, arm, name)
        for arm in ("slabs", "paged")
        for name in ("waste", "running_mean")
    }
    more, preemptions = _more(found, cell), found.value(cell, "paged", "preemptions")
    if None in figures.values() or more is None or preemptions is None:
        why = None if shape in SHAPES else detail(_NAME, "own_untested", shape=shape)
        return untested(finding, why)
    faster = found.ratio(cell, "tokens_per_s", "paged", "slabs")
    gain = more > _MORE and not took_longer(found, cell, faster)
    told = {"requests": cell.requests, "preemptions": preemptions, **figures}
    alike = 1 / _MORE < more <= _MORE and faster is not None and faster.clear
    no_more = detail(_NAME, "not_more") if alike else None
    own = None if shape in SHAPES else detail(_NAME, "own_name", shape=shape)
    below = (own, speed(faster), in_steps(found, cell, faster), no_more)
    return judged_as(_NAME, finding, "gain", gain, *below, **told)


LENGTHS = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "waste", "running_mean", "running_peak", "preemptions", "steps", "tokens_per_s",
        "latency_s",
    ),
    charts=("waste", "running_mean", "tokens_per_s"),
    findings=_findings,
    values="names",
    options=("total", *SHAPES),
    without={"contiguous.sequential": "one_at_a_time"},
)  # fmt: skip
