"""Requests that arrive at a rate: who gives in first.

    rate   |  ▂▄▆ .. each rate is run on two clocks
    steps  |  a step takes ``options.step_s`` of the trace's time: counts, and kvsim's prediction;
           |  one repeat, which must count what the warm-up counted
    wall   |  seconds as they pass: latency and throughput of this machine; an arm that is saturated
           |  at a rate is not run at higher ones

Lengths come from ``options.draw``, a trace (``options.trace``, its first ``options.requests``
requests, its own arrivals made faster or slower to the rate), or the prompts of
``workload.prompts_file``. Without a clock of their own, requests arrive as a Poisson process.
``options.time_limit_s`` is how long an answer may take to count as succeeded; unset, all do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiment.config import Config
from experiment.experiments.base import DRAW, Cell, Experiment, cell_of, drawn_lengths
from experiment.experiments.busy import others_cores
from experiment.experiments.found import (
    FEWEST,
    Found,
    busy,
    detail,
    fact,
    few_told,
    listed,
    sentences,
    untested,
)
from experiment.experiments.load import KEEPS_UP, LATER, kept_up, later_tokens, terms
from experiment.experiments.measured import CellEvents, measure
from experiment.experiments.results import CellResult, FigureValue, Finding, Number
from experiment.experiments.serving_paging import first_tokens, paging_alone
from experiment.foreign import given_path
from experiment.messages import Message, arm_message, message
from experiment.simulate.errors import said
from experiment.workload import check_size, choose_prompts
from kvsim.traces import ReadOptions, TraceFile
from kvsim.traces.types import TraceRequest

_NAME = "serving"
_ONE_BY_ONE = ("contiguous.sequential", "contiguous.growing")
_ARMS = (
    "contiguous.sequential", "contiguous.batch", "contiguous.growing", "slabs", "paged",
    "transformers_paged", "vllm",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Load:
    """What every rate has: lengths (none: the prompts of the config), arrivals at one a second."""

    lengths: list[list[int]]
    arrivals: list[float]


def _cells(config: Config) -> list[Cell]:
    options: Any = config.experiment.options
    _check_limit(options.get("time_limit_s"))
    load = _load(config)
    # One after another counts the same at every rate, so its steps are counted at the first one.
    counted = dict.fromkeys(_ONE_BY_ONE, message("skip.counted_once"))
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
            if clock == "steps":
                overrides["experiment.repeats"] = 1
            values = {"rate": float(rate), "clock": clock}
            again = clock == "steps" and cells
            several = cell_of(config, values, overrides, counted) if again else None
            cells.append(several or Cell(values, overrides))
    return cells


def _check_limit(limit: Any) -> None:
    """What is no time would count as none, and every answer as in time.

    Raises:
        ValueError: it is no number of seconds.
    """
    if limit is None:
        return
    number = isinstance(limit, int | float) and not isinstance(limit, bool)
    if not number or limit <= 0:
        raise ValueError(f"options.time_limit_s is a number of seconds above 0, not {limit!r}")


def _spared(cell: Cell, before: Sequence[CellEvents]) -> dict[str, Message]:
    """Who is saturated at a lower rate by the wall clock, and not because others kept cores busy.

    What is spared at one rate stands in the log as skipped, so that the last rate tells all.
    """
    if cell.values["clock"] != "wall":
        return {}
    lower = [
        each
        for each in before
        if each.started.values["clock"] == "wall"
        and float(each.started.values["rate"]) < float(cell.values["rate"])
    ]
    return _saturated(lower[-1]) if lower else {}


def _saturated(cell: CellEvents) -> dict[str, Message]:
    why = message("experiments.serving.saturated", rate=cell.started.values["rate"])
    found: dict[str, Message] = {}
    slowed = others_cores(cell.events)
    for arm in measure(cell):
        name, reason = arm.result.arm, arm.result.reason
        if reason is not None and reason.key == why.key:
            found[name] = reason
        queues = _all_queue([(kept_up(one), later_tokens(one)) for one in arm.repeats])
        if queues and name not in slowed:
            found[name] = why
    return found


def _load(config: Config) -> _Load:
    options: Any = config.experiment.options
    if "trace" in options:
        return _of_trace(given_path(options["trace"]), _asked(options), config)
    if config.workload.prompts_file is not None or config.workload.prompts:
        return _Load([], poisson(len(choose_prompts(config)), config.run.seed))
    lengths = drawn_lengths(config)
    return _Load(lengths, poisson(len(lengths), config.run.seed))


def _asked(options: Any) -> int:
    """Requests of a trace that are taken; unset, as many as are drawn without one."""
    count: int = options["requests"] if "requests" in options else options["draw"]["requests"]
    return count


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
    longest = _longest(config)
    requests, _ = _read(path, count)
    lengths = [
        [min(one.prompt_tokens, longest), min(one.output_tokens, longest)] for one in requests
    ]
    span = requests[-1].arrival_s
    if not span:
        return _Load(lengths, poisson(len(lengths), config.run.seed))
    scale = (len(requests) - 1) / span
    return _Load(lengths, [one.arrival_s * scale for one in requests])


def _read(path: Path, count: int) -> tuple[list[TraceRequest], bool]:
    """The first ``count`` requests of a trace, and whether it has more.

    Raises:
        UserError: it cannot be read, or more are asked for than a run holds.
        ValueError: none are asked for.
    """
    check_size(count, 0)
    if count < 1:
        raise ValueError(f"options.requests is 1 or more, not {count}")
    with said():
        requests = list(TraceFile(path, ReadOptions(limit=count + 1)))
    return requests[:count], len(requests) > count


def _longest(config: Config) -> int:
    """Tokens of a prompt, or of an answer, that a trace's request keeps at the most."""
    return config.cache.max_length // 2


def _notices(config: Config) -> list[Message]:
    """What of a trace is left out."""
    options: Any = config.experiment.options
    if "trace" not in options:
        return []
    requests, more = _read(given_path(options["trace"]), _asked(options))
    longest = _longest(config)
    cut = sum(max(one.prompt_tokens, one.output_tokens) > longest for one in requests)
    notices = []
    if more:
        notices.append(message("experiments.serving.trace_first", n=len(requests)))
    if cut:
        told = {"n": cut, "of": len(requests), "longest": longest}
        notices.append(message("experiments.serving.trace_cut", **told))
    return notices


def _findings(found: Found) -> list[Finding]:
    cells = [cell for cell in found.cells if cell.values["clock"] == "wall"]
    seen = {arm: rates for arm in _ARMS if (rates := _rates(found, cells, arm))}
    limits = [_limit(arm, rates) for arm, rates in seen.items()]
    return [paging_alone(found, cells), *first_tokens(found, cells), _first(seen), *limits]


# Of a repeat: what the arm kept up with, and how much later it was.
_Bore = tuple[Number | None, Number | None]


@dataclass(frozen=True, slots=True)
class _Rate:
    """How an arm bore a rate: what it kept up with and how much later it was, by repeats.

    ``repeats``: those that the arm ran. ``busy``: other programs kept cores busy while it ran, so a
    queue may be theirs, or one not be seen: who is slowed in the first half is no later in the
    second.
    """

    rate: float
    kept_up: FigureValue
    later: FigureValue
    repeats: int
    busy: bool

    @property
    def saturated(self) -> bool:
        """In every repeat, see :mod:`experiment.experiments.load`."""
        return _all_queue(self._pairs)

    @property
    def open(self) -> bool:
        """Fewer ended than came, and not in every repeat a queue grew: it may have had no time."""
        return not self.saturated and (self.kept_up.value or 0) < KEEPS_UP

    @property
    def told(self) -> dict[str, object]:
        """For a text: the medians."""
        return {"rate": self.rate, "kept_up": self.kept_up.value, "later": self.later.value}

    @property
    def queues(self) -> dict[str, object]:
        """For another: in how many repeats there was a queue that grew."""
        return {"queued": sum(map(_queues, self._pairs)), "repeats": len(self._pairs)}

    @property
    def few(self) -> tuple[Message, ...]:
        """That it is seen in too few repeats to be more than chance, where it is.

        More are advised where the arm ran too few, not where some tell nothing of a queue.
        """
        seen = len(self._pairs)
        told = few_told(seen) if seen < FEWEST else ()
        return told if self.repeats < FEWEST else told[:1]

    @property
    def half(self) -> str:
        """What it lacks of a queue in every repeat: a name under ``experiments.serving``."""
        fewer = all(kept is not None and kept < KEEPS_UP for kept, _ in self._pairs)
        late = all(later is not None and later > LATER for _, later in self._pairs)
        return "open_later" if fewer else "open_fewer" if late else "open_both"

    @property
    def _pairs(self) -> list[_Bore]:
        return list(zip(self.kept_up.values, self.later.values, strict=False))


def _queues(bore: _Bore) -> bool:
    kept, later = bore
    return kept is not None and later is not None and kept < KEEPS_UP and later > LATER


def _all_queue(bore: Sequence[_Bore]) -> bool:
    """In a single repeat the machine may have been busy with something else."""
    return bool(bore) and all(map(_queues, bore))


def _rates(found: Found, cells: list[CellResult], arm: str) -> list[_Rate]:
    rates = []
    for cell in cells:
        ran = cell.arm(arm)
        kept, later = (found.figure(cell, arm, name) for name in ("kept_up", "later_tokens"))
        if ran is not None and kept is not None and later is not None:
            rate = float(cell.values["rate"])
            rates.append(_Rate(rate, kept, later, ran.repeats, found.busy(cell, arm)))
    return sorted(rates, key=lambda each: each.rate)


def _first(seen: dict[str, list[_Rate]]) -> Finding:
    """Who gives in first: every arm that is saturated at the lowest rate at which any is.

    Who never was is named as well: of it the rates that were run do not show the limit.
    """
    gave = {arm: next((r for r in rates if r.saturated), None) for arm, rates in seen.items()}
    if any(rate is not None and rate.busy for rate in gave.values()):
        return busy("first")
    limits = {arm: rate.rate if rate else None for arm, rate in gave.items()}
    known = [rate for rate in limits.values() if rate is not None]
    if not seen:
        return untested("first")
    rule = detail(_NAME, "first_rule", keeps_up=KEEPS_UP, later=LATER)
    bore = [arm for arm, rates in seen.items() if _disturbed(rates, gave[arm] or rates[-1])]
    others = detail(_NAME, "first_busy", arms=_listed(bore)) if bore else None
    unclear = [arm for arm, rate in limits.items() if rate is None and seen[arm][-1].open]
    left = detail(_NAME, "first_open", arms=_listed(unclear)) if unclear else None
    if not known:
        highest = min(rates[-1].rate for rates in seen.values())
        return fact(_NAME, "first", "none", left, others, rule, rate=highest)
    arms = [arm for arm, rate in limits.items() if rate == min(known)]
    never = [arm for arm, rate in limits.items() if rate is None and not seen[arm][-1].open]
    rest = None
    if never:
        rest = detail(_NAME, "first_never", arms=_listed(never))
    elif not unclear:
        rest = detail(_NAME, "first_all", rate=max(known))
    few = [rate.few for rate in gave.values() if rate is not None]
    chance = max(few, key=len, default=())
    told = {"arms": _listed(arms), "rate": min(known)}
    return fact(_NAME, "first", "seen", *chance, rest, left, others, rule, **told)


def _listed(arms: list[str]) -> object:
    return listed([arm_message(arm).model_dump() for arm in arms])


def _limit(arm: str, rates: list[_Rate]) -> Finding:
    """The lowest rate at which an arm is saturated, or what is known of the highest one."""
    over_it = next((each for each in rates if each.saturated), None)
    key, at = ("gave", over_it) if over_it is not None else ("kept", rates[-1])
    advice = detail(_NAME, "limit_higher") if over_it is None else None
    below = None
    if over_it is None and at.open:
        key, advice = "open", detail(_NAME, "limit_longer")
        bore = max((each.rate for each in rates if not each.open), default=None)
        below = None if bore is None else detail(_NAME, "limit_below", rate=bore)
    told: dict[str, object] = {"arm": arm_message(arm).model_dump(), **at.told}
    if key == "open":
        told["half"] = detail(_NAME, at.half).model_dump()
    text = detail(_NAME, f"limit_{key}", **told)
    queued = detail(_NAME, "limit_queued", **at.queues)
    more = sentences([queued, *at.few, _disturbed(rates, at), below, advice])
    return Finding(id=f"limit_{arm.replace('.', '_')}", verdict=None, text=text, more=more)


def _disturbed(rates: list[_Rate], at: _Rate) -> Message | None:
    """At which rates, of those that tell the limit, others kept cores busy."""
    told = [f"{each.rate:g}" for each in rates if each.busy and each.rate <= at.rate]
    return detail(_NAME, "limit_busy", rates=listed(told)) if told else None


SERVING = Experiment(
    name=_NAME,
    cells=_cells,
    figures=(
        "succeeded", "requests_per_s", "kept_up", "later_tokens", "tokens_per_s", "latency_s",
        "latency_p50_s", "latency_p90_s", "latency_p95_s", "latency_p99_s", "first_token_s",
        "first_token_p50_s", "first_token_p90_s", "first_token_p95_s", "first_token_p99_s",
        "per_token_s", "per_token_p50_s", "per_token_p90_s", "per_token_p95_s",
        "per_token_p99_s", "steps",
        "running_peak", "running_at_rate", "waste", "preemptions",
    ),
    charts=("latency_s", "requests_per_s", "first_token_s"),
    findings=_findings,
    options=("step_s", "trace", "requests", "time_limit_s", *DRAW),
    without={"contiguous.growing": "like_sequential"},
    notices=_notices,
    terms=terms,
    spared=_spared,
)  # fmt: skip
