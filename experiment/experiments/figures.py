"""Every figure that an experiment can show: how it is measured, and what kvsim says of it.

    count   the same in all repeats, and in the simulation of the same requests     exact
    time    differs from repeat to repeat                                           median, spread

Counts are taken from the plans that were executed, replayed step by step; a mean of counts is one
over steps, so that no clock is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from experiment.experiments.measured import Measured
from experiment.experiments.results import Better, FigureInfo, Kind, Number, Unit
from experiment.results import StepRow
from kvsim.geometry import final_tokens
from kvsim.metrics import SimResult

Measure = Callable[[Measured], Number | None]
Foretell = Callable[[SimResult], Number | None]
ENGINE_ARMS = ("slabs", "paged")
# Those that hand out blocks and may take them back.
PAGED_ARMS = (*ENGINE_ARMS, "transformers_paged", "vllm")
_ALLOCATED = ("live", "padding", "finished", "unwritten", "rounding")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure by its name.

    Attributes:
        measure: of one repeat; None where this arm has none.
        foretell: of a simulation; None: kvsim does not say it.
        better: which direction is better, if either is.
        arms: that can have it; None: all.
    """

    name: str
    unit: Unit
    kind: Kind
    measure: Measure
    foretell: Foretell | None = None
    better: Better | None = None
    arms: tuple[str, ...] | None = None

    @property
    def info(self) -> FigureInfo:
        """What a report needs to know of it."""
        return FigureInfo(figure=self.name, unit=self.unit, kind=self.kind, better=self.better)


def _over_steps(value: Callable[[StepRow], float]) -> Measure:
    """Mean over the steps."""
    return lambda m: sum(map(value, m.rows)) / len(m.rows) if m.rows else None


def _total(value: Callable[[StepRow], int]) -> Measure:
    return lambda m: sum(map(value, m.rows)) if m.rows else None


def _most(value: Callable[[StepRow], float]) -> Measure:
    return lambda m: round(max(map(value, m.rows))) if m.rows else None


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


def _recomputed(m: Measured) -> int:
    """Positions computed beyond those that all requests have at their end, each once."""
    once = sum(
        len(first.token_ids) + sum(final_tokens(0, r.max_new_tokens) for r in (first, *others))
        for first, *others in m.workload.samples()
    )
    found = m.prefix.hit_cross + m.prefix.hit_batch if m.prefix else 0
    return sum(row.tokens for row in m.rows) - once + found


def _saved(m: Measured) -> float | None:
    entries = sum(row.table_entries for row in m.rows)
    return 1 - sum(row.held_blocks for row in m.rows) / entries if entries else None


def _error(name: str) -> Measure:
    """An error of a quantised cache; None where the cache holds the model's own precision."""
    return lambda m: getattr(m.quantized, name) if m.quantized else None


def _logit_error(m: Measured) -> float | None:
    """Mean error of logits over how far logits lie apart."""
    seen = m.quantized
    return seen.logit_mean / seen.logit_spread if seen and seen.logit_spread else None


def _same_token(m: Measured) -> float | None:
    seen = m.quantized
    return seen.same_token / seen.positions if seen and seen.positions else None


def _rate(m: Measured) -> float | None:
    tokens = sum(len(request.tokens) for request in m.requests)
    return tokens / m.generate_s if m.generate_s else None


def _of_requests(seconds: Callable[[Measured], Iterable[float | None]]) -> Measure:
    def mean(m: Measured) -> float | None:
        known = [value for value in seconds(m) if value is not None]
        return fmean(known) if known else None

    return mean


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("blocks", "count", "count", lambda m: m.pool.blocks,
               lambda s: s.pool_slots // s.block_size, arms=ENGINE_ARMS),
        Figure("pool_bytes", "bytes", "count", lambda m: m.pool.tensor_bytes),
        Figure("fits", "count", "count", lambda m: m.fits, better="more"),
        Figure("steps", "count", "count", lambda m: len(m.rows), lambda s: round(s.busy_s), "less"),
        Figure("running_peak", "count", "count", _most(lambda r: r.running),
               lambda s: s.running.max, "more"),
        Figure("running_mean", "mean", "count", _over_steps(lambda r: r.running),
               lambda s: s.running.busy_mean, "more"),
        Figure("live_peak", "count", "count", _most(lambda r: r.live),
               lambda s: s.states["live"].peak_slots),
        Figure("allocated_mean", "mean", "count", _over_steps(lambda r: r.allocated),
               _allocated_mean, "less"),
        Figure("waste", "share", "count", _waste, _foretold_waste, "less"),
        Figure("pool_used", "share", "count", _pool_used,
               lambda s: s.states["live"].mean_slots / s.pool_slots, "more", arms=PAGED_ARMS),
        Figure("table_entries", "mean", "count", _over_steps(lambda r: r.table_entries),
               lambda s: s.sharing.unshared / s.busy_s if s.sharing else None, "less",
               arms=PAGED_ARMS),
        Figure("held_blocks", "mean", "count", _over_steps(lambda r: r.held_blocks),
               lambda s: s.sharing.held / s.busy_s if s.sharing else None, "less",
               arms=PAGED_ARMS),
        Figure("shared_peak", "count", "count", _most(lambda r: r.shared), arms=PAGED_ARMS),
        Figure("saved", "share", "count", _saved,
               lambda s: s.sharing.share if s.sharing else None, "more", arms=PAGED_ARMS),
        Figure("copied_blocks", "count", "count", _total(lambda r: r.copied),
               lambda s: s.copies.blocks, "less", arms=ENGINE_ARMS),
        Figure("preemptions", "count", "count", _total(lambda r: r.preempted),
               lambda s: s.preemptions.total, "less", arms=PAGED_ARMS),
        Figure("recomputed", "count", "count", _recomputed, lambda s: s.tokens.recomputed, "less",
               arms=PAGED_ARMS),
        Figure("swapped_blocks", "count", "count", _total(lambda r: r.swapped),
               lambda s: s.preemptions.swapped_out_blocks + s.preemptions.swapped_in_blocks,
               "less", arms=ENGINE_ARMS),
        Figure("computed", "count", "count", _total(lambda r: r.tokens),
               lambda s: s.tokens.computed - s.tokens.pads, "less"),
        Figure("block_bytes", "bytes", "count", lambda m: m.pool.block_bytes, better="less",
               arms=ENGINE_ARMS),
        Figure("attention_error", "share", "count", _error("attention"), better="less",
               arms=ENGINE_ARMS),
        Figure("logit_error", "share", "count", _logit_error, better="less", arms=ENGINE_ARMS),
        Figure("same_token", "share", "count", _same_token, better="more", arms=ENGINE_ARMS),
        Figure("generate_s", "seconds", "time", lambda m: m.generate_s, better="less"),
        Figure("tokens_per_s", "rate", "time", _rate, better="more"),
        Figure("step_s", "seconds", "time",
               lambda m: m.generate_s / len(m.rows) if m.rows else None, better="less"),
        Figure("first_token_s", "seconds", "time",
               _of_requests(lambda m: (r.first_token_s for r in m.requests)), better="less"),
        Figure("latency_s", "seconds", "time",
               _of_requests(lambda m: (r.latency_s for r in m.requests)), better="less"),
    )
}  # fmt: skip
