"""Figures of experiments: how each is measured, and how kvsim predicts it.

    count     equal in all repeats and in the simulation     exact
    measured  once per arm: depends on float rounding        no comparison
    time      varies between repeats                         median, spread

Counts come from the executed plans, replayed step by step. Means of counts are means over steps,
independent of any clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median

from experiment.analysis.experiment_results import FigureInfo, Number
from experiment.analysis.metrics import METRICS, PERCENTILES, Metric
from experiment.analysis.percentiles import percentile
from experiment.events import RequestFinished
from experiment.experiments.arenas import (
    Measure,
    PredictArena,
    arena_bytes,
    arena_mean,
    hole,
)
from experiment.experiments.classes import of_class, predicted_steps, steps_to_first
from experiment.experiments.closed_loop import at_a_time, loop_latency, most_at_a_time
from experiment.experiments.load import in_time, kept_up, later_tokens, rest, slowest
from experiment.experiments.measured import Measured
from experiment.replay.step_rows import StepRow
from kvsim.core.request import final_tokens
from kvsim.sim.arena import FITS, Fit
from kvsim.sim.metrics import SimResult

Predict = Callable[[SimResult], Number | None]

# Sequential arms: one request after another at any concurrency limit.
ONE_BY_ONE = ("contiguous.sequential", "contiguous.growing")
ENGINE_ARMS = ("slabs", "paged")
# Arms that allocate blocks and may preempt.
PAGED_ARMS = (*ENGINE_ARMS, "transformers_paged", "vllm")
_FIRST_TOKEN: Callable[[RequestFinished], float | None] = attrgetter("first_token_s")
_ALLOCATED = ("live", "padding", "finished", "unwritten", "rounding")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Attributes:
        measure: returns its value in one repeat, or None if the arm has none.
        predict: returns its value by a simulation or an arena's arithmetic; None: not predicted.
        arms: arms that can have it; None: all.
        absent: the reason, under ``experiments.reason``, if a finished repeat has none.
        arena: allocator of the contiguous arena alongside the arm that it describes; such arenas
            are predicted separately.
        on_steps: whether a time is meaningful if arrivals are counted in steps.
        stretched: for a time that is neither in seconds nor a rate, the addend that makes it
            proportional to the duration of a process; None: the figure does not depend on it.
        metric: the name of its metric, if different.
    """

    name: str
    measure: Measure
    predict: Predict | PredictArena | None = None
    arms: tuple[str, ...] | None = None
    absent: str | None = None
    on_steps: bool = False
    arena: Fit | None = None
    stretched: Number | None = None
    metric: str | None = None

    @property
    def about(self) -> Metric:
        """The figure's unit, kind, direction and label."""
        return METRICS[self.metric or self.name]

    @property
    def info(self) -> FigureInfo:
        """Description of the figure for reports."""
        about = self.about
        return FigureInfo(figure=self.name, unit=about.unit, kind=about.kind, better=about.better)


def _over_steps(value: Callable[[StepRow], float]) -> Measure:
    """Measure a mean over the steps."""
    return lambda m: sum(map(value, m.rows)) / len(m.rows) if m.rows else None


def _total(value: Callable[[StepRow], int]) -> Measure:
    return lambda m: sum(map(value, m.rows)) if m.rows else None


def _most(value: Callable[[StepRow], float]) -> Measure:
    return lambda m: round(max(map(value, m.rows))) if m.rows else None


def _in_slots(blocks: Measure) -> Measure:
    """Convert a number of blocks to slots."""

    def slots(m: Measured) -> Number | None:
        counted = blocks(m)
        return None if counted is None else counted * m.pool.block_size

    return slots


def _mean_of(states: Iterable[str]) -> Callable[[SimResult], float]:
    names = tuple(states)
    return lambda s: sum(s.states[name].mean_slots for name in names if name in s.states)


_allocated_mean = _mean_of(_ALLOCATED)


def _waste(m: Measured) -> float | None:
    allocated = sum(row.allocated for row in m.rows)
    return sum(row.wasted for row in m.rows) / allocated if allocated else None


def _foretold_waste(s: SimResult) -> float | None:
    allocated = _allocated_mean(s)
    return 1 - s.states["live"].mean_slots / allocated if allocated else None


def _pool_used(m: Measured) -> float | None:
    reserved = sum(row.reserved for row in m.rows)
    return sum(row.live for row in m.rows) / reserved if reserved else None


def _reserved_swing(m: Measured) -> float | None:
    """(max - min) / max of the slots held for KV while requests run."""
    held = [row.reserved for row in m.rows]
    most = max(held, default=0.0)
    return (most - min(held)) / most if most else None


def _recomputed(m: Measured) -> int:
    """Positions computed more than once."""
    once = sum(
        len(first.token_ids) + sum(final_tokens(0, r.max_new_tokens) for r in (first, *others))
        for first, *others in m.workload.samples()
    )
    found = (_prefix_hits(m) or 0) + sum(row.found_late for row in m.rows)
    return sum(row.tokens for row in m.rows) - once + found


def _saved(m: Measured) -> float | None:
    entries = sum(row.table_entries for row in m.rows)
    return 1 - sum(row.held_blocks for row in m.rows) / entries if entries else None


def _part(part: str, name: str) -> Measure:
    """Measure a value other than those of steps; None if it was not measured."""
    return lambda m: getattr(getattr(m.events, part), name, None)


def _logit_error(m: Measured) -> float | None:
    """Mean error of logits relative to their spread."""
    seen = m.events.quantized
    return seen.logit_mean / seen.logit_spread if seen and seen.logit_spread else None


def _same_token(m: Measured) -> float | None:
    seen = m.events.quantized
    return seen.same_token / seen.positions if seen and seen.positions else None


def _rate(m: Measured) -> float | None:
    tokens = sum(len(request.tokens) for request in m.requests)
    return tokens / m.generate_s if m.generate_s else None


def _of_requests(seconds: Callable[[Measured], Iterable[float | None]]) -> Measure:
    def mean(m: Measured) -> float | None:
        known = [value for value in seconds(m) if value is not None]
        return fmean(known) if known else None

    return mean


def _percentile(seconds: Callable[[RequestFinished], float | None], percent: int) -> Measure:
    """Measure a percentile over requests; None if there are too few requests for it."""
    return lambda m: percentile(
        [value for r in m.requests if (value := seconds(r)) is not None], percent
    )


def _per_token(request: RequestFinished) -> float | None:
    """Seconds per token after the first (TPOT)."""
    if request.first_token_s is None or len(request.tokens) < 2:
        return None
    return (request.latency_s - request.first_token_s) / (len(request.tokens) - 1)


def _turn_to_first(request: RequestFinished) -> float | None:
    """Seconds from a request's start to its first token."""
    return None if request.first_token_s is None else request.first_token_s - request.wait_s


def _first_ttft(m: Measured) -> float | None:
    return next((_turn_to_first(r) for r in m.requests if r.request == 0), None)


def _later_ttft(m: Measured) -> float | None:
    known = [v for r in m.requests if r.request and (v := _turn_to_first(r)) is not None]
    return median(known) if known else None


def _prefix_hits(m: Measured) -> int | None:
    """Prefix-cache hits in tokens, by the arm's admissions or vLLM's statistics.

    Hits of a resumed request are excluded.
    """
    if m.events.engine_steps and m.config.engine.prefix_caching:
        return sum(step.prefix_hits for step in m.events.engine_steps)
    own = m.events.prefix
    return own.hit_cross + own.hit_batch if own else None


def _foretold_hits(s: SimResult) -> int | None:
    return s.prefix.hit_other_requests + s.prefix.hit_same_step if s.prefix else None


def _decode_step(m: Measured) -> float | None:
    """Mean seconds of a step in which every request computes one token."""
    steps = [row.t_ns - row.started_ns for row in m.rows if row.tokens == row.running]
    return fmean(steps) / 1e9 if steps else None


def _table_share(m: Measured) -> float | None:
    """Additional attention time with scattered blocks, relative to contiguous memory."""
    timed = m.events.lookup
    return timed.scattered_s / timed.contiguous_s - 1 if timed else None


def _table_of_step(m: Measured) -> float | None:
    """Additional attention time of all layers, as a share of a decode step."""
    step, timed = _decode_step(m), m.events.lookup
    if not timed or not step:
        return None
    return (timed.scattered_s - timed.contiguous_s) * m.model.layers / step


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("blocks", lambda m: m.pool.blocks,
               lambda s: s.pool_slots // s.block_size, arms=ENGINE_ARMS),
        # Without blocks that the engine reserves for itself.
        Figure("usable_blocks", lambda m: m.pool.blocks - m.pool.engine_blocks,
               lambda s: s.pool_slots // s.block_size, arms=PAGED_ARMS),
        Figure("budget_bytes", lambda m: m.workload.budget_bytes),
        Figure("pool_bytes", lambda m: m.pool.tensor_bytes, metric="kv_bytes"),
        Figure("fits", lambda m: m.fits),
        Figure("steps", lambda m: len(m.rows), lambda s: round(s.busy_s)),
        Figure("running_peak", _most(lambda r: r.running), lambda s: s.running.max),
        Figure("running_mean", _over_steps(lambda r: r.running),
               lambda s: s.running.busy_mean, metric="running_over_steps"),
        Figure("running_at_rate", _over_steps(lambda r: r.running), lambda s: s.running.busy_mean),
        Figure("live_peak", _most(lambda r: r.live), lambda s: s.states["live"].peak_slots),
        Figure("allocated_mean", _over_steps(lambda r: r.allocated), _allocated_mean),
        Figure("waste", _waste, _foretold_waste),
        Figure("pool_used", _pool_used, lambda s: s.states["live"].mean_slots / s.pool_slots,
               arms=PAGED_ARMS, metric="live_of_pool"),
        Figure("reserved_swing", _reserved_swing),
        Figure("table_entries", _over_steps(lambda r: r.table_entries),
               lambda s: s.sharing.unshared / s.busy_s if s.sharing else None,
               arms=PAGED_ARMS),
        # In slots, because block sizes differ between arms.
        Figure("block_slots", lambda m: m.pool.block_size,
               lambda s: s.block_size, arms=PAGED_ARMS, metric="block_size"),
        Figure("usable_slots", lambda m: (m.pool.blocks - m.pool.engine_blocks) * m.pool.block_size,
               lambda s: s.pool_slots, arms=PAGED_ARMS),
        Figure("unshared_slots", _in_slots(_over_steps(lambda r: r.table_entries)),
               lambda s: s.sharing.unshared * s.block_size / s.busy_s if s.sharing else None,
               arms=PAGED_ARMS),
        Figure("held_slots", _in_slots(_over_steps(lambda r: r.held_blocks)),
               lambda s: s.sharing.held * s.block_size / s.busy_s if s.sharing else None,
               arms=PAGED_ARMS),
        Figure("shared_slots", _in_slots(_most(lambda r: r.shared)), arms=PAGED_ARMS),
        Figure("saved", _saved, lambda s: s.sharing.share if s.sharing else None, arms=PAGED_ARMS),
        Figure("copied_slots", _in_slots(_total(lambda r: r.copied)),
               lambda s: s.copies.blocks * s.block_size,
               arms=(*ENGINE_ARMS, "transformers_paged")),
        Figure("preemptions", _total(lambda r: r.preempted),
               lambda s: s.preemptions.total, arms=PAGED_ARMS),
        Figure("recomputed", _recomputed, lambda s: s.tokens.recomputed,
               arms=PAGED_ARMS, metric="recomputed_tokens"),
        Figure("swapped_blocks", _total(lambda r: r.swapped),
               lambda s: s.preemptions.swapped_out_blocks + s.preemptions.swapped_in_blocks,
               arms=ENGINE_ARMS),
        Figure("computed", _total(lambda r: r.tokens), lambda s: s.tokens.computed - s.tokens.pads),
        Figure("block_bytes", lambda m: m.pool.block_bytes, arms=ENGINE_ARMS),
        Figure("attention_error", _part("quantized", "attention"),
               arms=ENGINE_ARMS, absent="own_precision"),
        Figure("logit_error", _logit_error,
               arms=ENGINE_ARMS, absent="own_precision", metric="logit_error_share"),
        Figure("same_token", _same_token, arms=ENGINE_ARMS, absent="own_precision"),
        Figure("error_positions", _part("quantized", "positions"),
               arms=ENGINE_ARMS, absent="own_precision"),
        Figure("generate_s", lambda m: m.generate_s),
        Figure("tokens_per_s", _rate),
        Figure("step_s", lambda m: m.generate_s / len(m.rows) if m.rows else None),
        Figure("decode_step_s", _decode_step, arms=ENGINE_ARMS),
        Figure("first_token_s", _of_requests(lambda m: (r.first_token_s for r in m.requests))),
        Figure("latency_s", _of_requests(lambda m: (r.latency_s for r in m.requests))),
        *(Figure(f"{name}_p{percent}_s", _percentile(seconds, percent), absent="few_requests")
          for name, seconds in (
              ("latency", attrgetter("latency_s")), ("first_token", _FIRST_TOKEN),
              ("per_token", _per_token),
          )
          for percent in PERCENTILES),
        Figure("loop_latency_s", loop_latency(at_a_time), absent="no_loop"),
        Figure("loop_latency_most_s", loop_latency(most_at_a_time),
               arms=ONE_BY_ONE, absent="no_loop"),
        Figure("per_token_s", _of_requests(lambda m: map(_per_token, m.requests))),
        Figure("requests_per_s",
               lambda m: len(m.requests) / m.generate_s if m.generate_s else None),
        Figure("succeeded", in_time, absent="not_limited"),
        Figure("kept_up", kept_up),
        Figure("later_tokens", later_tokens),
        # Seconds relative to those of all arrivals; a slower process prolongs both.
        Figure("rest", rest, stretched=1),
        Figure("slowest", slowest, stretched=0),
        Figure("first_ttft_s", _first_ttft),
        Figure("later_ttft_s", _later_ttft),
        Figure("prefix_hits", _prefix_hits, _foretold_hits,
               arms=PAGED_ARMS, absent="no_cache", metric="prefix_found"),
        *(Figure(f"lookup_{name}_s", _part("lookup", f"{name}_s"),
                 arms=("paged",)) for name in ("contiguous", "ordered", "scattered")),
        Figure("lookup_share", _table_share, arms=("paged",)),
        Figure("lookup_of_step", _table_of_step, arms=("paged",)),
        *(Figure(f"{kind}_{name}", hole(kind, name), attrgetter(name),
                 arms=("paged",), absent="no_hole", arena=kind)
          for kind in FITS for name in ("refused_steps", "steps", "running_peak")),
        *(Figure(f"{kind}_running_mean", arena_mean(kind), attrgetter("running_mean"),
                 arms=("paged",), absent="no_hole", arena=kind,
                 metric=f"{kind}_running_over_steps") for kind in FITS),
        Figure("first_fit_first_step", hole("first_fit", "first_step"),
               attrgetter("first_step"), arms=("paged",), absent="no_hole", arena="first_fit"),
        *(Figure(f"first_fit_{name}", hole("first_fit", name, bytes_each=True),
                 arena_bytes(name), arms=("paged",), absent="no_hole", arena="first_fit")
          for name in ("free", "largest", "needed")),
        Figure("urgent_first_steps", of_class(True, steps_to_first),
               predicted_steps(True), arms=(*ENGINE_ARMS, "vllm")),
        Figure("patient_first_steps", of_class(False, steps_to_first),
               predicted_steps(False), arms=(*ENGINE_ARMS, "vllm")),
        Figure("urgent_first_s", of_class(True, _FIRST_TOKEN), on_steps=True),
        Figure("patient_first_s", of_class(False, _FIRST_TOKEN), on_steps=True),
    )
}  # fmt: skip
