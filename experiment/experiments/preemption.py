"""A budget too small for all requests: giving way by recompute and by swap, for each block size.

ample       everybody has blocks           the same requests, the same blocks, nobody gives way
recompute   a victim's blocks are freed    and its tokens computed again when it comes back
swap        a victim's blocks are copied   to host memory and back

Swap is our engine's alone; the other engines with blocks have a recompute of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, cell_of, contiguous, without_blocks_of
from experiment.experiments.cells import Cell
from experiment.experiments.found import (
    FEWEST,
    Found,
    detail,
    judged,
    sentences,
    untested,
)
from experiment.text.messages import Message, arm_message, message

_NAME = "preemption"
_WAYS = ("recompute", "swap")
_OTHERS = ("transformers_paged", "vllm")


def _cells(config: Config) -> list[Cell]:
    tight = config.cache.budget
    cells = []
    for size in config.experiment.values:
        for way in ("ample", *_WAYS):
            overrides = {"cache.block_size": size, "cache.budget": "auto"}
            if way != "ample":
                overrides |= {"cache.budget": tight, "engine.preemption": way}
            absent = without_blocks_of(int(size), config.run.device)
            if way == "swap":
                absent |= dict.fromkeys(_OTHERS, message("skip.no_swap"))
            cells.append(
                cell_of(config, {"block_size": size, "preemption": way}, overrides, absent)
            )
    return [cell for cell in cells if cell is not None]


def _findings(found: Found) -> list[Finding]:
    others = [finding for arm in _OTHERS for finding in _other(found, arm)]
    return [_outputs(found), *(_cost(found, way) for way in _WAYS), *others]


def _outputs(found: Found) -> Finding:
    """Whether requests that gave way generated what they generate when nobody does."""
    equal = preempted = 0
    outputs: list[int] = []
    for cell, ample in _pairs(found):
        arm, reference = cell.arm("paged"), ample.arm("paged")
        if arm is None or reference is None:
            continue
        outputs.append(len(reference.outputs))
        equal += sum(a == b for a, b in zip(arm.outputs, reference.outputs, strict=False))
        preempted += int(found.value(cell, "paged", "preemptions") or 0)
    if not sum(outputs):
        return untested("outputs")
    if not preempted:
        return untested("outputs", detail(_NAME, "outputs_never"))
    figures = {"equal": equal, "preemptions": preempted, **_everywhere(outputs)}
    same = equal == sum(outputs)
    why = None if same else detail(_NAME, "outputs_why")
    return judged(_NAME, "outputs", same, why, **figures)


def _everywhere(outputs: Sequence[int]) -> dict[str, object]:
    """For a text: requests of a cell, in how many cells they ran, and all outputs together.

    Every cell has the same requests.
    """
    key = "in_cells" if len(outputs) > 1 else "in_cell"
    cells = detail(_NAME, key, cells=len(outputs)).model_dump()
    return {"requests": max(outputs), "outputs": sum(outputs), "cells": cells}


def _cost(found: Found, way: str) -> Finding:
    """What giving way cost beside the same requests with ample memory, for each block size.

    Counted work first: it is exact, where times may lie too close to be told apart.
    """
    texts = [
        said
        for cell, ample in _pairs(found)
        if cell.values["preemption"] == way and (said := _size(found, cell, ample)) is not None
    ]
    if not texts:
        return untested(way)
    return Finding(id=way, verdict=None, text=texts[0], more=sentences(texts[1:]))


def _other(found: Found, arm: str) -> list[Finding]:
    """What its own giving way cost another engine, where it ran."""
    texts: list[Message | None] = []
    equal, outputs = 0, list[int]()
    for cell, ample in _pairs(found):
        one, reference = cell.arm(arm), ample.arm(arm)
        names = ("preemptions", "recomputed", "steps")
        counts = {name: found.value(cell, arm, name) for name in names}
        without = found.value(ample, arm, "steps")
        if one is None or reference is None or None in counts.values() or without is None:
            continue
        told = {"size": cell.block_size, "ample": without, "time": _time(found, arm, cell, ample)}
        name = arm_message(arm).model_dump()
        texts.append(detail(_NAME, "other_size", arm=name, **told, **counts))
        outputs.append(len(reference.outputs))
        equal += sum(a == b for a, b in zip(one.outputs, reference.outputs, strict=False))
    if not texts or texts[0] is None:
        return []
    same = detail(_NAME, "other_outputs", equal=equal, **_everywhere(outputs))
    return [Finding(id=arm, verdict=None, text=texts[0], more=sentences([*texts[1:], same]))]


def _size(found: Found, cell: CellResult, ample: CellResult) -> Message | None:
    """One block size: what was done again, and how long it took."""
    names = ("preemptions", "recomputed", "swapped_blocks", "steps")
    counts = {name: found.value(cell, "paged", name) for name in names}
    without = found.value(ample, "paged", "steps")
    if None in counts.values() or without is None:
        return None
    time = _time(found, "paged", cell, ample)
    told = {"size": cell.block_size, "ample": without, "time": time}
    return message("experiments.preemption.size", **told, **counts)


def _time(found: Found, arm: str, cell: CellResult, ample: CellResult) -> dict[str, Any]:
    """The time beside that with ample memory, as far as repeats and the machine allow."""
    slower = found.compared((cell, arm, "generate_s"), (ample, arm, "generate_s"))
    lacking: str | None = "few" if slower is None else slower.lacking
    if slower is None or lacking:
        if lacking == "busy" and not found.busy(cell, arm):
            lacking = "busy_ample"  # the one that it is held against
        told = {"n": slower.repeats if slower else 0, "least": FEWEST}
        return message(f"experiments.preemption.time_{lacking}", **told).model_dump()
    key = "same" if not slower.clear else "longer" if slower.factor > 1 else "shorter"
    return message(f"experiments.preemption.time_{key}", **slower.told).model_dump()


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
        "budget_bytes", "usable_blocks", "preemptions", "recomputed", "swapped_blocks",
        "running_peak", "running_mean", "steps", "generate_s",
    ),
    charts=("generate_s", "preemptions"),
    findings=_findings,
    without={
        **contiguous("no_preemption"),
        "slabs": "never_short",
    },
)  # fmt: skip
