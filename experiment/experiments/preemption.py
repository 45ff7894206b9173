"""A budget too small for all requests: preemption by recompute and by swap, for each block size.

ample         enough blocks for all          the same requests and blocks, no preemption
recompute     a victim's blocks are freed    and its tokens computed again when it resumes
swap          a victim's blocks are copied   to host memory and back
first_chunk   recompute, with admission as soon as blocks are free for a prompt's first chunk

Only our engine swaps; the other paged engines recompute, and vLLM supports both kinds of admission.
"""

from __future__ import annotations

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.analysis.finding_text import param
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, cell_of, contiguous, without_blocks_of
from experiment.experiments.cells import Cell
from experiment.experiments.findings import (
    fact,
    note,
    same,
    same_outputs,
    side,
    tally,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Found
from experiment.experiments.labels import arm_label, figure_label, labelled, value_label
from experiment.text.messages import message

_NAME = "preemption"
_WAYS = ("recompute", "swap", "first_chunk")
_OTHERS = ("transformers_paged", "vllm")


def _cells(config: Config) -> list[Cell]:
    tight = config.cache.budget
    cells = []
    for size in config.experiment.values:
        for way in ("ample", *_WAYS):
            overrides = {"cache.block_size": size, "cache.budget": "auto"}
            if way != "ample":
                overrides |= {"cache.budget": tight}
            absent = without_blocks_of(int(size), config.run.device)
            if way == "swap":
                overrides |= {"engine.preemption": "swap"}
                absent |= dict.fromkeys(_OTHERS, message("skip.no_swap"))
            if way == "first_chunk":
                overrides |= {"engine.admission": "first_chunk"}
                absent |= {"transformers_paged": message("skip.no_admission")}
            cells.append(
                cell_of(config, {"block_size": size, "preemption": way}, overrides, absent)
            )
    return [cell for cell in cells if cell is not None]


def _findings(found: Found) -> list[Finding]:
    others = [_cost(found, arm, arm) for arm in _OTHERS if any(found.with_arms(arm))]
    costs = [_cost(found, way, "paged", way) for way in _WAYS]
    return [*costs, _outputs(found), *(each for each in others if each.verdict is None)]


def _outputs(found: Found) -> Finding:
    """Whether preempted requests generate the same tokens as with ample memory."""
    row, preempted = _same(found, "paged"), 0
    for cell, _ in _pairs(found, "paged"):
        preempted += int(found.value(cell, "paged", "preemptions") or 0)
    if row is not None and not preempted:
        return untested("outputs", why("never_preempted"))
    times = Compared(
        at=arm_label("paged"),
        sides=[side(labelled(figure_label("preemptions")), "preemptions", preempted)],
    )
    return same("outputs", row, times)


def _same(found: Found, arm: str) -> Compared | None:
    return same_outputs((cell.arm(arm), ample.arm(arm)) for cell, ample in _pairs(found, arm))


def _cost(found: Found, name: str, arm: str, way: str | None = None) -> Finding:
    """Preemption cost relative to ample memory, for each block size.

    Counts come first: they are exact, whereas times may not be distinguishable.
    """
    names = ["preemptions", "recomputed", *(["swapped_blocks"] if arm == "paged" else [])]
    rows: list[Compared | None] = []
    for cell, ample in _pairs(found, arm):
        known = [found.value(cell, arm, figure) for figure in names]
        steps = versus(found, (cell, arm, "steps"), (ample, arm, "steps"))
        if cell.values["preemption"] != (way or cell.values["preemption"]) or steps is None:
            continue
        if None not in known:
            time = versus(found, (cell, arm, "generate_s"), (ample, arm, "generate_s"))
            rows += [steps, tally(found, cell, arm, *names), time]
    outputs = _same(found, arm) if way is None else None
    of = value_label("preemption", way) if way else arm_label(arm)
    title = note(_NAME, "cost", of=param(of))
    return fact(name, rows[0] if rows else None, *rows[1:], outputs, title=title)


def _pairs(found: Found, arm: str) -> list[tuple[CellResult, CellResult]]:
    """Cells with a small budget, each with the ample one of the same block size."""
    cells = list(found.with_arms(arm))
    ample = {c.values["block_size"]: c for c in cells if c.values["preemption"] == "ample"}
    short = [c for c in cells if c.values["preemption"] != "ample"]
    pairs = [(c, ample.get(c.values["block_size"])) for c in short]
    return [(cell, other) for cell, other in pairs if other is not None]


PREEMPTION = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "budget_bytes", "usable_blocks", "preemptions", "recomputed", "swapped_blocks",
        "running_peak", "running_mean", "steps", "generate_s",
    ),
    charts=("steps", "generate_s", "preemptions"),
    findings=_findings,
    without={**contiguous("no_preemption"), "slabs": "no_preemption"},
)  # fmt: skip
