"""1 to 32 requests at a time, a new one whenever one ends: throughput, latency, saturation.

    4 at a time   0 ────────┐ 4 ───┐ 6 ──
                  1 ───┐ 5 ───────────┐          the same requests in every cell
                  2 ──────┐ ...                  (engine.max_num_seqs is what varies)
                  3 ─────────┐ ...

A padded batch takes so many rows and ends with its longest. One after another is the same in every
cell and runs in the first one. Latency counts from when a user asks, who does when the last answer
is there (:mod:`experiment.experiments.closed_loop`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import Experiment, cell_of, in_turn
from experiment.experiments.cells import Cell
from experiment.experiments.figures import ONE_BY_ONE
from experiment.experiments.found import (
    FEWEST,
    Faster,
    Found,
    detail,
    fact,
    over,
    rate_spread,
    sentences,
    timed,
    undecided,
    untested,
)
from experiment.experiments.whole import SEQUENTIAL, over_base, whole_gain
from experiment.text.messages import Message, arm_message, message
from experiment.workload.requests import check_size

_NAME = "concurrency"
_MANY = ("contiguous.batch", "slabs", "paged", "transformers_paged", "vllm")
# Less more throughput than this from one number to the next is called none.
_MORE = 1.1
# Fewer numbers at a time tell one growth at the most, which may be the last or the first of many.
_NUMBERS = 3


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    lengths = in_turn(options["lengths"], options["requests"])
    alone = dict.fromkeys(ONE_BY_ONE, message("skip.one_at_a_time"))
    # No more can be at a time than a run holds.
    check_size(max(map(int, config.experiment.values), default=0), 0)
    cells = []
    for index, limit in enumerate(config.experiment.values):
        values = {"concurrency": limit}
        overrides = {"engine.max_num_seqs": limit, "workload.lengths": lengths}
        several = cell_of(config, values, overrides, alone) if index else None
        cells.append(several or Cell(values, overrides))
    return cells


def _findings(found: Found) -> list[Finding]:
    steps = [_batching(found), _engine(found), _paging(found)]
    return [_whole(found), *steps, *(_saturation(found, arm) for arm in _MANY if _ran(found, arm))]


def _whole(found: Found) -> Finding:
    """How much of the whole gain is batching, how much our engine, how much paging."""
    whole = whole_gain(found)
    if whole is None or not whole.complete:
        return untested("whole")
    if whole.open is not None:
        return _counted(found, "whole", whole.open)
    factors = {name: step.factor for name, step in whole.steps.items()}
    at = whole.cell.values["concurrency"]
    told: dict[str, object] = {"concurrency": at, **whole.faster.told, **factors}
    cache = "cache" in whole.steps
    key = "seen_cache" if cache else "seen"
    judged_ = "whole_judged_cache" if cache else "whole_judged"
    by = detail(_NAME, judged_, product=prod(factors.values()))
    return fact(_NAME, "whole", key, by, whole.plain.told, **told)


def _batching(found: Found) -> Finding:
    """From one request after another to a padded batch."""
    return _gain(found, "batching", "contiguous.batch", None)


def _engine(found: Found) -> Finding:
    """From a padded batch to slabs of our engine: scheduling and kernels."""
    return _gain(found, "engine", "slabs", "contiguous.batch")


def _paging(found: Found) -> Finding:
    """From slabs to blocks: paging alone; where times decide nothing, its steps are told."""
    seen = _over(found, "tokens_per_s", "paged", "slabs")
    if seen and not seen[-1][1].enough:
        return _counted(found, "paging", seen[-1][1])
    return _gain(found, "paging", "paged", "slabs")


def _counted(found: Found, name: str, faster: Faster) -> Finding:
    """No verdict on a time, with what paging alone changes in steps where that is known."""
    plain = undecided(name, faster)
    cell = next(reversed(list(found.with_arms("slabs", "paged"))), None)
    if cell is None:
        return plain
    counts = {
        f"{arm}_{figure}": found.value(cell, arm, figure)
        for arm in ("slabs", "paged")
        for figure in ("steps", "running_mean")
    }
    if None in counts.values():
        return plain
    why = detail(_NAME, f"counted_{faster.lacking}").model_dump()
    text = detail(_NAME, f"{name}_counted", why=why, concurrency=_number(cell), **counts)
    return plain.model_copy(update={"text": text})


def _over(found: Found, figure: str, arm: str, base: str | None) -> list[tuple[CellResult, Faster]]:
    """A figure of an arm over that of another, in every cell where both are known."""
    return [
        (cell, factor)
        for cell in found.with_arms(arm)
        if (factor := over_base(found, cell, figure, arm, base))
    ]


def _latency(found: Found, arm: str, base: str | None) -> list[Message | None]:
    """What the same step does to latency, at the most at a time and over all numbers."""
    seen = _latencies(found, arm, base)
    if not seen:
        return [detail(_NAME, "latency_unknown")]
    cell, factor = seen[-1]
    if factor.lacking:
        lack = {"n": factor.repeats, "least": FEWEST}
        return [detail(_NAME, f"latency_{factor.lacking}", **lack)]
    key = "same" if not factor.clear else "longer" if factor.factor > 1 else "shorter"
    told = {"concurrency": _number(cell), "arm": _way(arm), "base": _way(base), **factor.told}
    return [detail(_NAME, f"latency_{key}", **told), over(_by_number(seen))]


def _latencies(found: Found, arm: str, base: str | None) -> list[tuple[CellResult, Faster]]:
    """An arm's latency over another's, of as many users each.

    One request after another runs once and has it besides for the most users of any cell.
    """
    if base is not None:
        return _over(found, "loop_latency_s", arm, base)
    first = next(found.with_arms(SEQUENTIAL), None)
    most = max(found.config.experiment.values, default=None)
    cell = next((each for each in found.with_arms(arm) if _number(each) == most), None)
    if first is None or cell is None:
        return []
    one, other = (cell, arm, "loop_latency_s"), (first, SEQUENTIAL, "loop_latency_most_s")
    factor = found.compared(one, other)
    return [] if factor is None else [(cell, factor)]


def _way(arm: str | None) -> object:
    """How an arm runs requests, as a part of a sentence."""
    name = {None: "one_by_one", "contiguous.batch": "batch"}.get(arm, arm)
    return detail(_NAME, f"way_{name}").model_dump()


def _by_number(seen: list[tuple[CellResult, Faster]]) -> list[tuple[int, Faster]]:
    return [(_number(cell), each) for cell, each in seen]


def _number(cell: CellResult) -> int:
    return int(cell.values["concurrency"])


def _gain(found: Found, name: str, arm: str, base: str | None) -> Finding:
    """At the most at a time; how many rows ran is said too, where memory allowed fewer."""
    seen = _over(found, "tokens_per_s", arm, base)
    if not seen:
        return untested(name)
    cell, faster = seen[-1]
    told = {
        "concurrency": cell.values["concurrency"],
        "running": found.value(cell, arm, "running_mean"),
        "peak": found.value(cell, arm, "running_peak"),
    }
    return timed(_NAME, name, faster, told, over(_by_number(seen)), *_latency(found, arm, base))


def _saturation(found: Found, arm: str) -> Finding:
    """From which number on more at a time brings no more throughput."""
    name = arm.replace(".", "_")
    rates = [
        (cell, rate)
        for cell in found.cells
        if (rate := found.figure(cell, arm, "tokens_per_s")) is not None
    ]
    steps = [
        _Step(_number(one), _number(more), growth)
        for (one, _), (more, _) in pairwise(rates)
        if (growth := found.compared((more, arm, "tokens_per_s"), (one, arm, "tokens_per_s")))
    ]
    if len(rates) < _NUMBERS or not steps:
        return untested(f"saturation_{name}", _too_few(found, len(rates)))
    best, figure = max(rates, key=lambda pair: pair[1].value or 0)
    flat = next((step for step in steps if step.growth.factor < _MORE), None)
    step = flat or min(steps, key=lambda each: each.growth.factor)
    text = detail(
        _NAME, f"saturation_{'still' if flat is None else 'from'}",
        arm=arm_message(arm).model_dump(), concurrency=step.at, more=step.more, **step.growth.told,
    )  # fmt: skip
    most = {"rate": figure.value, "best": _number(best), "spread": rate_spread(figure)}
    # Whoever grew still, grew with every number; whoever did not, with every one before.
    looked_at = steps if flat is None else steps[: steps.index(flat) + 1]
    busy = any(each.growth.busy for each in looked_at)
    open_ = detail(_NAME, "saturation_busy") if busy else _open(looked_at)
    more = sentences([open_, detail(_NAME, "saturation_most", **most)])
    return Finding(id=f"saturation_{name}", verdict=None, text=text, more=more)


def _too_few(found: Found, ran: int) -> Message | None:
    """Why so few numbers tell nothing; None: the arm did not end well at the others."""
    if len(found.config.experiment.values) < 2:
        return detail(_NAME, "saturation_alone")
    return detail(_NAME, "saturation_two") if ran == 2 else None


@dataclass(frozen=True, slots=True)
class _Step:
    """From one number at a time to the next, and what throughput grows by."""

    at: int
    more: int
    growth: Faster


def _open(steps: list[_Step]) -> Message | None:
    """Where repeats, or the margin, leave open on which side of a tenth more a growth lies."""

    def known(growth: Faster) -> bool:
        far = 1 + growth.margin
        low, high = min(growth.low, growth.factor / far), max(growth.high, growth.factor * far)
        return growth.enough and (high < _MORE or low >= _MORE)

    if all(known(step.growth) for step in steps):
        return None
    return detail(_NAME, "saturation_open")


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
