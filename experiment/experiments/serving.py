"""Requests that arrive at a rate: who gives in first.

    rate   |  ▂▄▆ .. each rate is run on two clocks
    steps  |  a step takes ``options.step_s`` of the trace's time: counts, and kvsim's prediction
    wall   |  seconds as they pass: latency and throughput of this machine

Lengths come from ``options.draw``, a trace (``options.trace``, its first ``options.requests``
requests, its own arrivals made faster or slower to the rate), or the prompts of
``workload.prompts_file``. Without a clock of their own, requests arrive as a Poisson process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiment.config import Config
from experiment.experiments.base import Cell, Experiment, drawn_lengths
from experiment.experiments.found import Found, judged, untested
from experiment.experiments.results import CellResult, Finding, Number
from experiment.messages import message
from experiment.simulate.errors import said
from experiment.workload import choose_prompts
from kvsim.traces import ReadOptions, TraceFile

_NAME = "serving"
_ARMS = ("contiguous.sequential", "contiguous.batch", "contiguous.growing", "slabs", "paged")
# So many times the latency at the lowest rate, and an arm no longer keeps up.
_TOO_LATE = 2.0


@dataclass(frozen=True, slots=True)
class _Load:
    """What every rate has: lengths (none: the prompts of the config), arrivals at one a second."""

    lengths: list[list[int]]
    arrivals: list[float]


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    load = _load(config)
    cells = []
    for rate in config.experiment.values:
        seconds = [arrival / float(rate) for arrival in load.arrivals]
        for clock in ("steps", "wall"):
            unit = options["step_s"] if clock == "steps" else 1
            overrides: dict[str, Any] = {
                "workload.arrivals": [round(second / unit, 6) for second in seconds],
                "workload.clock": clock,
            }
            if load.lengths:
                overrides["workload.lengths"] = load.lengths
            cells.append(Cell({"rate": float(rate), "clock": clock}, overrides))
    return cells


def _load(config: Config) -> _Load:
    options: Any = config.experiment.options
    if "trace" in options:
        return _of_trace(Path(options["trace"]).expanduser(), options["requests"], config)
    if config.workload.prompts_file is not None or config.workload.prompts:
        return _Load([], poisson(len(choose_prompts(config)), config.run.seed))
    lengths = drawn_lengths(config)
    return _Load(lengths, poisson(len(lengths), config.run.seed))


def poisson(count: int, seed: int) -> list[float]:
    """Arrivals at one a second on average; the first one comes at 0."""
    drawn = random.Random(seed)  # noqa: S311 - to be drawn again, not to be secret
    gaps = [drawn.expovariate(1.0) for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0)) if count else []


def _of_trace(path: Path, count: int, config: Config) -> _Load:
    """The beginning of a trace, as fast as one request a second.

    Raises:
        UserError: it cannot be read.
    """
    longest = config.cache.max_length
    with said():
        requests = list(TraceFile(path, ReadOptions(limit=count)))
    lengths = [
        [min(one.prompt_tokens, longest // 2), min(one.output_tokens, longest // 2)]
        for one in requests
    ]
    span = requests[-1].arrival_s
    if not span:
        return _Load(lengths, poisson(len(lengths), config.run.seed))
    scale = (len(requests) - 1) / span
    return _Load(lengths, [one.arrival_s * scale for one in requests])


def _findings(found: Found) -> list[Finding]:
    cells = [cell for cell in found.cells if cell.values["clock"] == "wall"]
    limits = {arm: _limit(found, cells, arm) for arm in _ARMS if _latencies(found, cells, arm)}
    return [_paging(found, cells), *(_told(arm, *limit) for arm, limit in limits.items())]


def _paging(found: Found, cells: list[CellResult]) -> Finding:
    """At the highest rate, blocks against slabs of the same engine."""
    both = [cell for cell in cells if cell.arm("slabs") and cell.arm("paged")]
    faster = found.ratio(both[-1], "latency_s", "slabs", "paged") if both else None
    if faster is None:
        return untested("paging")
    shown = faster.clear and faster.factor > 1
    rate = both[-1].values["rate"]
    return judged(_NAME, "paging", shown, rate=rate, factor=faster.factor)


def _latencies(found: Found, cells: list[CellResult], arm: str) -> list[tuple[float, Number]]:
    known = [(float(cell.values["rate"]), found.value(cell, arm, "latency_s")) for cell in cells]
    return sorted((rate, value) for rate, value in known if value is not None)


def _limit(found: Found, cells: list[CellResult], arm: str) -> tuple[float | None, float]:
    """The first rate at which an arm no longer keeps up, and the highest one that it saw."""
    known = _latencies(found, cells, arm)
    lowest = known[0][1]
    over = [rate for rate, latency in known if latency > lowest * _TOO_LATE]
    return (over[0] if over else None), known[-1][0]


def _told(arm: str, limit: float | None, highest: float) -> Finding:
    name = message(f"arm_name.{arm.replace('.', '_')}").model_dump()
    key, rate = ("kept", highest) if limit is None else ("gave", limit)
    text = message(f"experiments.serving.limit_{key}", arm=name, rate=rate, times=_TOO_LATE)
    return Finding(id=f"limit_{arm.replace('.', '_')}", verdict=None, text=text)


SERVING = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "succeeded", "requests_per_s", "tokens_per_s", "latency_s", "latency_p50_s",
        "latency_p90_s", "latency_p95_s", "latency_p99_s", "first_token_s", "first_token_p50_s",
        "first_token_p90_s", "first_token_p99_s", "per_token_s", "steps", "running_peak",
        "running_mean", "waste", "preemptions",
    ),
    charts=("latency_s", "requests_per_s", "first_token_s"),
    findings=_findings,
)  # fmt: skip
