"""Concurrency 1 to 32 in a closed loop: throughput, latency, saturation.

    concurrency 4   0 ────────┐ 4 ───┐ 6 ──
                    1 ───┐ 5 ───────────┐          the same requests in every cell
                    2 ──────┐ ...                  (engine.max_num_seqs varies)
                    3 ─────────┐ ...

A padded batch has this number of rows and ends with its longest one. Sequential arms run the same
in every cell, so only in the first. Latency is that of a closed loop
(:mod:`experiment.experiments.closed_loop`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from experiment.analysis.experiment_results import CellResult, Compared, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, cell_of, in_turn
from experiment.experiments.cells import Cell
from experiment.experiments.figures import ONE_BY_ONE
from experiment.experiments.findings import (
    between,
    fact,
    factors,
    note,
    ratios,
    series,
    tally,
    timed,
    undecided,
    untested,
    versus,
    why,
)
from experiment.experiments.found import Faster, Found
from experiment.experiments.labels import saturation_title
from experiment.experiments.whole import SEQUENTIAL, over_base, whole_gain
from experiment.text.messages import Message, message
from experiment.workload.requests import check_size

_NAME, _AXIS = "concurrency", "concurrency"
_MANY = ("contiguous.batch", "slabs", "paged", "transformers_paged", "vllm")
# Smaller growth of throughput from one concurrency to the next counts as none.
_MORE = 1.1
# With fewer values there is at most one growth, which cannot locate saturation.
_NUMBERS = 3


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    lengths = in_turn(options["lengths"], options["requests"])
    alone = dict.fromkeys(ONE_BY_ONE, message("skip.one_at_a_time"))
    # Concurrency is limited by the number of requests that a run may have.
    check_size(max(map(int, config.experiment.values), default=0), 0)
    cells = []
    for index, limit in enumerate(config.experiment.values):
        values = {"concurrency": limit}
        overrides = {"engine.max_num_seqs": limit, "workload.lengths": lengths}
        several = cell_of(config, values, overrides, alone) if index else None
        cells.append(several or Cell(values, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    gains = [
        _gain(found, "batching", "contiguous.batch", SEQUENTIAL),
        _gain(found, "engine", "slabs", "contiguous.batch"),
        _gain(found, "paging", "paged", "slabs"),
    ]
    return [_whole(found), *gains, *(_saturation(found, arm) for arm in _MANY if _ran(found, arm))]


def _whole(found: Found) -> Finding:
    """Total gain, and the shares of batching, our engine and paging."""
    whole = whole_gain(found)
    row = versus(found, *whole.places["whole"], _AXIS) if whole else None
    if whole is None or row is None or not whole.complete:
        return untested("whole")
    steps = [versus(found, *whole.places[name]) for name in whole.steps]
    if whole.open is not None and whole.open.reason is not None:
        return undecided("whole", row, *_counts(found, whole.cell), reason=whole.open.reason)
    product = prod(step.factor for step in whole.steps.values())
    notes = [note(_NAME, "whole_judged", product=product), whole.plain.note]
    return fact("whole", row, *steps, notes=notes)


def _counts(found: Found, cell: CellResult) -> list[Compared | None]:
    """Effect of paging alone on step counts, for inconclusive times."""
    names = ("running_mean", "steps")
    return [between(found, cell, name, "paged", "slabs") for name in names]


def _gain(found: Found, name: str, arm: str, base: str) -> Finding:
    """Throughput and latency of one arm over another at the highest concurrency."""
    seen = [
        (cell, factor)
        for cell in found.with_arms(arm)
        if (factor := over_base(found, cell, "tokens_per_s", arm, base))
    ]
    if not seen:
        return untested(name)
    cell, faster = seen[-1]
    at = next(found.with_arms(base)) if base == SEQUENTIAL else cell
    ran = tally(found, cell, arm, "running_mean", "running_peak")
    counts = _counts(found, cell) if name == "paging" and not faster.enough else [ran]
    return timed(
        found, name, (cell, arm, "tokens_per_s"), (at, base, "tokens_per_s"),
        *counts,
        factors(seen, "tokens_per_s", arm, base, _AXIS),
        _latency(found, arm, base),
    )  # fmt: skip


def _latency(found: Found, arm: str, base: str) -> Compared | None:
    """Latency of two arms at the highest number of users that both ran.

    Sequential arms run once; their latency is also computed for the most users of any cell.
    """
    if base != SEQUENTIAL:
        seen = ratios(found, found.cells, "loop_latency_s", arm, base)
        return between(found, seen[-1][0], "loop_latency_s", arm, base) if seen else None
    first = next(found.with_arms(SEQUENTIAL), None)
    most = max(found.config.experiment.values, default=None)
    cell = next((each for each in found.with_arms(arm) if _number(each) == most), None)
    if first is None or cell is None:
        return None
    one, other = (cell, arm, "loop_latency_s"), (first, SEQUENTIAL, "loop_latency_most_s")
    return versus(found, one, other)


def _number(cell: CellResult) -> int:
    return int(cell.values["concurrency"])


def _saturation(found: Found, arm: str) -> Finding:
    """The concurrency from which throughput no longer grows."""
    name = f"saturation_{arm.replace('.', '_')}"
    title = saturation_title(arm)
    cells = [cell for cell in found.cells if found.figure(cell, arm, "tokens_per_s")]
    steps = [
        _Step(_number(one), _number(more), growth)
        for one, more in pairwise(cells)
        if (growth := found.compared((more, arm, "tokens_per_s"), (one, arm, "tokens_per_s")))
    ]
    if len(cells) < _NUMBERS or not steps:
        return untested(name, _too_few(found, len(cells)), title=title)
    flat = next((step for step in steps if step.growth.factor < _MORE), None)
    step = flat or min(steps, key=lambda each: each.growth.factor)
    # Throughput grew in each of these steps, except the last one if it is flat.
    looked_at = steps if flat is None else steps[: steps.index(flat) + 1]
    params = {"at": step.at, "more": step.more, "factor": step.growth.factor, "limit": _MORE}
    found_at = {} if flat is None else {"kind": "from", "estimate": flat.at}
    row = series(found, cells, "tokens_per_s", arm, _AXIS).model_copy(
        update={"reason": why("growth", **params), **found_at}
    )
    return fact(name, row, notes=[_open(looked_at)], title=title)


def _too_few(found: Found, ran: int) -> Message | None:
    """The reason if too few values were run; None if the arm failed at the others."""
    few = len(found.config.experiment.values) < 2 or ran == 2
    return why("needs", option="experiment.values", values=_NUMBERS) if few else None


@dataclass(frozen=True, slots=True)
class _Step:
    """Growth of throughput from one concurrency to the next."""

    at: int
    more: int
    growth: Faster


def _open(steps: list[_Step]) -> Message | None:
    """Why a growth is not distinguishable from ``_MORE``: background load, repeats, margin."""

    def known(growth: Faster) -> bool:
        far = 1 + growth.margin
        low, high = min(growth.low, growth.factor / far), max(growth.high, growth.factor * far)
        return growth.enough and (high < _MORE or low >= _MORE)

    if any(step.growth.busy for step in steps):
        return message("experiments.busy")
    return None if all(known(step.growth) for step in steps) else note(_NAME, "saturation_open")


def _ran(found: Found, arm: str) -> bool:
    cells = found.with_arms(arm)
    return any(found.value(cell, arm, "tokens_per_s") is not None for cell in cells)


CONCURRENCY = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "tokens_per_s", "loop_latency_s", "loop_latency_most_s", "per_token_s", "running_peak",
        "running_mean", "steps",
    ),
    charts=("tokens_per_s", "loop_latency_s", "running_mean"),
    findings=_findings,
    options=("requests", "lengths"),
)  # fmt: skip
