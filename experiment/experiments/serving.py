"""Requests that arrive at a rate: the rates that each arm sustains.

    rate   |  ▂▄▆ .. each rate is run on two clocks
    steps  |  a step takes ``options.step_s`` of the trace's time: counts, and kvsim's prediction;
           |  one repeat, whose counts must equal the warm-up's
    wall   |  wall-clock time: latency and throughput of this machine; an arm that is saturated at a
           |  rate is not run at higher ones

Lengths come from ``options.draw``, a trace (``options.trace``: its first ``options.requests``
requests, with arrivals scaled to the rate), or the prompts of ``workload.prompts_file`` (the first
``options.requests``, if set). Without arrival times, requests arrive as a Poisson process.

``options.time_limit_s`` is the time limit of a successful answer; unset, all succeed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiment.analysis.experiment_results import CellResult, Finding
from experiment.config.schema import Config
from experiment.experiments.base import DRAW, Experiment, cell_of, draw_terms, drawn_lengths
from experiment.experiments.cells import Cell, CellEvents
from experiment.experiments.figures import ONE_BY_ONE
from experiment.experiments.found import Found
from experiment.experiments.load import terms
from experiment.experiments.serving_findings import (
    first_tokens,
    limits,
    paging_alone,
    saturated_at,
)
from experiment.files.bounded_reading import expand_path
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import translate_errors
from experiment.workload.requests import check_size, choose_prompts
from kvsim.traces import Head, TraceFile

_NAME = "serving"
_ARMS = (
    "contiguous.sequential", "contiguous.batch", "contiguous.growing", "slabs", "paged",
    "transformers_paged", "vllm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Load:
    """Workload of all rates: lengths, or prompts without any; arrivals at 1 request/s.

    ``notices``: on omitted or cut requests of a trace or prompt file.
    """

    lengths: list[list[int]]
    arrivals: list[float]
    prompts: list[str] = field(default_factory=list)
    notices: list[Message] = field(default_factory=list)


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    _check_limit(options.get("time_limit_s"))
    load = _load(config)
    # Counts of sequential arms do not depend on the rate: run them on steps at the first one only.
    counted = dict.fromkeys(ONE_BY_ONE, message("skip.counted_once"))
    cells: list[Cell] = []
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
            elif "requests" in options:
                overrides |= {"workload.prompts": load.prompts, "workload.prompts_file": None}
            if clock == "steps":
                overrides["experiment.repeats"] = 1
            values = {"rate": float(rate), "clock": clock}
            again = clock == "steps" and cells
            several = cell_of(config, values, overrides, counted) if again else None
            cells.append(several or Cell(values, overrides))
    return cells


def _check_limit(limit: Any) -> None:
    """Check ``options.time_limit_s``.

    Raises:
        ValueError: not a number of seconds.
    """
    if limit is None:
        return
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not number or limit <= 0:
        raise ValueError(f"options.time_limit_s is a number of seconds above 0, not {limit!r}")


def _spared(
    cell: Cell, before: Sequence[CellEvents], evaluate: Callable[[CellEvents], CellResult]
) -> dict[str, Message]:
    """Arms that are saturated at a lower rate by the wall clock, without background load."""
    lower = [
        evaluate(each)
        for each in before
        if each.started.values["clock"] == cell.values["clock"] == "wall"
        and float(each.started.values["rate"]) < float(cell.values["rate"])
    ]
    if not lower:
        return {}
    found = Found(before[0].config, lower)
    rates = {arm.arm: saturated_at(found, arm.arm) for arm in lower[0].arms}
    return {
        arm: message("experiments.serving.saturated", rate=rate)
        for arm, rate in rates.items()
        if rate is not None
    }


def _load(config: Config) -> _Load:
    options: Any = config.experiment.options
    if "trace" in options:
        count = options["requests"] if "requests" in options else options["draw"]["requests"]
        return _of_trace(expand_path(options["trace"]), _checked(count), config)
    if not _has_prompts(config):
        lengths = drawn_lengths(config)
        return _Load(lengths, poisson(len(lengths), config.run.seed))
    prompts = choose_prompts(config)
    count = _checked(options["requests"]) if "requests" in options else len(prompts)
    left_out = [_first(count)] if count < len(prompts) else []
    prompts = prompts[:count]
    return _Load([], poisson(len(prompts), config.run.seed), prompts, left_out)


def _has_prompts(config: Config) -> bool:
    return config.workload.prompts_file is not None or bool(config.workload.prompts)


def _checked(count: Any) -> int:
    """Check ``options.requests``.

    Raises:
        ValueError: not a positive integer.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"options.requests is 1 or more, not {count!r}")
    return count


def poisson(count: int, seed: int) -> list[float]:
    """Poisson arrivals in seconds, 1 request/s on average; the first one is 0."""
    drawn = random.Random(seed)  # noqa: S311 - to be drawn again, not to be secret
    gaps = [drawn.expovariate(1.0) for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0)) if count else []


def _of_trace(path: Path, count: int, config: Config) -> _Load:
    """The first ``count`` requests of a trace, scaled to 1 request/s.

    Raises:
        UserError: it cannot be read, or more requests than a run may have.
    """
    check_size(count, 0)
    with translate_errors():
        read = list(Head(TraceFile(path), count + 1))
    requests, longest = read[:count], config.cache.max_length // 2
    sizes = [(one.prompt_tokens, one.output_tokens) for one in requests]
    lengths = [[min(prompt, longest), min(output, longest)] for prompt, output in sizes]
    notices = [_first(count)] if len(read) > count else []
    cut = sum(max(size) > longest for size in sizes)
    if cut:
        params = {"n": cut, "of": len(requests), "longest": longest}
        notices.append(message("experiments.serving.trace_cut", **params))
    span = requests[-1].arrival_s
    if not span:
        return _Load(lengths, poisson(len(lengths), config.run.seed), notices=notices)
    scale = (len(requests) - 1) / span
    return _Load(lengths, [one.arrival_s * scale for one in requests], notices=notices)


def _first(count: int) -> Message:
    return message("experiments.serving.first_requests", n=count)


def _terms(config: Config) -> list[Message]:
    """Definitions of rates and limits, and of sampled lengths."""
    given = "trace" in config.experiment.options or _has_prompts(config)
    return [*terms(config), *([] if given else draw_terms(config))]


def _findings(found: Found) -> list[Finding]:
    cells = [cell for cell in found.cells if cell.values["clock"] == "wall"]
    alone = [paging_alone(found, cells), *first_tokens(found, cells)]
    return [*alone, *limits(found, cells, _ARMS)]


SERVING = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "succeeded", "requests_per_s", "kept_up", "later_tokens", "rest", "slowest",
        "tokens_per_s", "latency_s", "latency_p50_s", "latency_p90_s", "latency_p95_s",
        "latency_p99_s", "first_token_s",
        "first_token_p50_s", "first_token_p90_s", "first_token_p95_s", "first_token_p99_s",
        "per_token_s", "per_token_p50_s", "per_token_p90_s", "per_token_p95_s",
        "per_token_p99_s", "steps",
        "running_peak", "running_at_rate", "waste", "preemptions",
    ),
    charts=("latency_s", "requests_per_s", "first_token_s"),
    findings=_findings,
    values="numbers",
    options=("step_s", "trace", "requests", "time_limit_s", *DRAW),
    without={"contiguous.growing": "one_at_a_time"},
    notices=lambda config: _load(config).notices,
    terms=_terms,
    spared=_spared,
)  # fmt: skip
