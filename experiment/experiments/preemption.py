"""A budget too small for all requests: giving way by recompute and by swap, for each block size.

ample       everybody has blocks           the same requests, the same blocks, nobody gives way
recompute   a victim's blocks are freed    and its tokens computed again when it comes back
swap        a victim's blocks are copied   to host memory and back
"""

from __future__ import annotations

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment, contiguous, other_engines
from experiment.experiments.found import Faster, Found, fact, judged, ratio, untested
from experiment.experiments.results import CellResult, Finding

_NAME = "preemption"
_WAYS = ("recompute", "swap")


def _cells(config: Config) -> list[Cell]:
    tight = config.cache.budget
    cells = []
    for size in config.experiment.values:
        for way in ("ample", *_WAYS):
            overrides = {"cache.block_size": size, "cache.budget": "auto"}
            if way != "ample":
                overrides |= {"cache.budget": tight, "engine.preemption": way}
            cells.append(Cell({"block_size": size, "preemption": way}, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    return [_outputs(found), *(_cost(found, way) for way in _WAYS)]


def _outputs(found: Found) -> Finding:
    """Whether requests that gave way generated what they generate when nobody does."""
    equal = requests = preempted = 0
    for cell, ample in _pairs(found):
        arm, reference = cell.arm("paged"), ample.arm("paged")
        if arm is None or reference is None:
            continue
        requests += len(reference.outputs)
        equal += sum(a == b for a, b in zip(arm.outputs, reference.outputs, strict=False))
        preempted += int(found.value(cell, "paged", "preemptions") or 0)
    if not requests or not preempted:
        return untested("outputs")
    figures = {"equal": equal, "requests": requests, "preemptions": preempted}
    return judged(_NAME, "outputs", equal == requests, **figures)


def _cost(found: Found, way: str) -> Finding:
    """What giving way cost beside the same requests with ample memory, by block size."""
    costs: list[tuple[int, Faster]] = []
    for cell, ample in _pairs(found):
        one = found.figure(cell, "paged", "generate_s")
        slower = ratio(one, found.figure(ample, "paged", "generate_s"))
        if cell.values["preemption"] == way and slower is not None:
            costs.append((cell.block_size, slower))
    if not costs:
        return untested(way)
    cheap = min(costs, key=lambda pair: pair[1].factor)
    dear = max(costs, key=lambda pair: pair[1].factor)
    figures = {"least": cheap[1].factor, "most": dear[1].factor}
    spreads = {"least_spread": cheap[1].told["spread"], "most_spread": dear[1].told["spread"]}
    return fact(_NAME, way, "cost", least_size=cheap[0], most_size=dear[0], **figures, **spreads)


def _pairs(found: Found) -> list[tuple[CellResult, CellResult]]:
    """Cells in which memory is short, each with the ample one of the same block size."""
    ample = {c.values["block_size"]: c for c in found.cells if c.values["preemption"] == "ample"}
    short = [c for c in found.cells if c.values["preemption"] != "ample"]
    pairs = [(c, ample.get(c.values["block_size"])) for c in short]
    return [(cell, other) for cell, other in pairs if other is not None]


PREEMPTION = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "preemptions", "recomputed", "swapped_blocks", "running_peak", "running_mean", "steps",
        "generate_s",
    ),
    charts=("generate_s", "preemptions"),
    findings=_findings,
    without={
        **contiguous("no_preemption"),
        "slabs": "never_short",
        **other_engines("own_preemption"),
    },
)  # fmt: skip
