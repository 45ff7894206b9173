"""Table of all metrics: unit, kind, better direction.

    METRICS[name] ┬ unit, kind, better, label    the same in every report, comparison and gate
                  └ read                         read the value of an arm of an ordinary run

    count    determined by lengths and settings, the same in every run         may be gated
             (and by the model's scores, if these determine tokens, beams or ends)
    time     depends on the clock of the machine                               never gated
    measured read from the machine: memory of processes, rounding of floats    never gated

Other sources of the same metrics: :mod:`experiment.experiments.figures` for repeats of an
experiment and kvsim's predictions, :mod:`experiment.report.facts.simulation_figures` for
simulations, :mod:`experiment.bench.rows` for benchmarks. A metric has a direction only if it is
always better: reserved bytes are equal by design, and more is allocated if more requests run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from statistics import fmean
from typing import Any

from experiment.analysis.experiment_results import Better, Kind, Number, Unit
from experiment.analysis.results import ArmResult, RequestResult, Results, TokenComparison
from experiment.text.messages import Message, message
from kvsim.accounting.slots import SlotState
from kvsim.sim.arena import FITS

Read = Callable[[Results, ArmResult], Number | None]
PERCENTILES = (50, 90, 95, 99)
_SLOTS: dict[str, Better | None] = {
    "reserved": None, "allocated": None, "live": None, "wasted": "less", "padding": "less",
    "finished": "less", "unwritten": "less", "rounding": "less", "hole": "less", "cached": None,
    "engine": None, "watermark": None, "free": None,
}  # fmt: skip
_BYTES = ("reserved", "allocated", "live", "wasted")
_OF_POOL: dict[str, Better | None] = {"allocated": None, "live": "more", "wasted": "less"}
_FIRST = ("hit_cross", "hit_batch")  # at a request's first admission
_AGAIN = ("hit_own", "hit_again")  # when it comes back after a preemption


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric.

    Attributes:
        read: value of an arm of an ordinary run; None if unknown.
        named: composed label; None: ``metric.<name>``.
    """

    name: str
    unit: Unit
    kind: Kind
    better: Better | None = None
    read: Read = lambda _, __: None
    named: Message | None = None

    @property
    def label(self) -> Message:
        """Name in reports."""
        return self.named or message(f"metric.{self.name}")


@dataclass(frozen=True, slots=True)
class Field:
    """Read a number of an arm's result by its path; None if a part of the path is None."""

    path: str

    def __call__(self, _: Results, arm: Any) -> Number | None:
        """Read the number."""
        names = self.path.split(".")
        value: Number | None = reduce(lambda at, name: at and getattr(at, name), names, arm)
        return value


def statistic(name: str, of: Message, **params: Any) -> Message:
    """Label of a statistic of another metric, such as its mean or percentile."""
    return message(f"metric.stat.{name}", figure=of.model_dump(), **params)


def _peak_slots(name: str) -> Read:
    return lambda _, arm: round(getattr(arm.peak, name)) if arm.peak else None


def _of_requests(seconds: Callable[[RequestResult], float | None]) -> Read:
    def mean(_: Results, arm: ArmResult) -> float | None:
        known = [value for r in arm.requests if (value := seconds(r)) is not None]
        return fmean(known) if known else None

    return mean


def _tokens(value: Callable[[TokenComparison], Number | None]) -> Read:
    """Read from the token comparison with the reference arm, which itself has none."""
    return lambda results, arm: next(
        (value(one) for one in results.tokens if one.arm == arm.arm), None
    )


def _prefix(*names: str, theirs: str | None = None) -> Read:
    """Read from the prefix cache, in tokens; ``theirs``: field of vLLM's statistics."""

    def value(_: Results, arm: ArmResult) -> int | None:
        if arm.prefix_cache is not None:
            return sum(arm.prefix_cache[name] for name in names)
        if theirs is None or arm.engine is None or not arm.engine.prefix_queries:
            return None
        tokens: int = getattr(arm.engine, theirs)
        return tokens

    return value


def _error(name: str) -> Read:
    def value(_: Results, arm: ArmResult) -> Number | None:
        error = arm.quantization.get(name) if arm.quantization else None
        return error if isinstance(error, int | float) else None

    return value


def _disagreeing_channels(_: Results, arm: ArmResult) -> int | None:
    reconciliation = arm.reconciliation
    if reconciliation is None or all(row.agrees is None for row in reconciliation.rows):
        return None
    return sum(row.agrees is False for row in reconciliation.rows)


def _unplanned(_: Results, arm: ArmResult) -> int | None:
    check = arm.simulator
    return None if check is None or check.equal_steps is None else check.steps - check.equal_steps


def _term(name: str) -> Message:
    return message(f"term.{name}.name")


def _slots(name: str) -> Message:
    return statistic("slots", _term(name))


def _noun(name: str) -> Message:
    return message(f"metric.{name}")


def _over_steps(name: str, of: Message, better: Better | None = None) -> Metric:
    return Metric(name, "mean", "count", better, named=statistic("over_steps", of))


_MEANS: dict[str, Read] = {
    "first_token": _of_requests(lambda r: r.first_token_s),
    "latency": _of_requests(lambda r: r.latency_s),
    "wait": _of_requests(lambda r: r.wait_s),
}
_TIMES = (*_MEANS, "per_token")
# Metrics of an ordinary run: at the peak of live slots, except means and times.
_RUN = (
    *(Metric(f"{name}_slots", "count", "count", better, _peak_slots(name), _slots(name))
      for name, better in _SLOTS.items()),
    *(Metric(f"{name}_bytes", "bytes", "count", _SLOTS[name], Field(f"peak_bytes.{name}"),
             _term(name)) for name in _BYTES),
    *(Metric(f"{name}_slots_mean", "mean", "time", _SLOTS[name], Field(f"mean.{name}"),
             statistic("over_time", _slots(name))) for name in _BYTES),
    Metric("live_share", "share", "count", "more", Field("peak.utilisation")),
    Metric("live_share_mean", "share", "time", "more", Field("mean.utilisation"),
           statistic("over_time", _noun("live_share"))),
    Metric("fits", "count", "count", "more", Field("fits")),
    Metric("fits_plain", "count", "count", "more", Field("fits_plain")),
    Metric("slot_bytes", "bytes", "count", None, Field("slot_bytes")),
    Metric("block_size", "count", "count", None, Field("block_size")),
    Metric("blocks", "count", "count", None, Field("blocks")),
    Metric("kv_bytes", "bytes", "count", None, Field("tensor_bytes")),
    Metric("budget_bytes", "bytes", "count", None, Field("budget_bytes")),
    Metric("requests", "count", "count", "more",
           lambda _, arm: len(arm.requests) if arm.status == "finished" else None),
    Metric("new_tokens", "count", "count", None, Field("new_tokens")),
    Metric("steps", "count", "count", "less", Field("steps")),
    Metric("preemptions", "count", "count", "less", Field("preemptions")),
    Metric("copied_blocks", "count", "count", "less", Field("copied_blocks")),
    Metric("swapped_blocks", "count", "count", "less", Field("swapped_blocks")),
    Metric("shared_peak", "count", "count", None, Field("shared_peak")),
    Metric("moved_bytes", "bytes", "count", "less", Field("moved_bytes")),
    Metric("prefix_queried", "count", "count", None, _prefix("queried", theirs="prefix_queries")),
    Metric("prefix_found", "count", "count", "more", _prefix(*_FIRST, theirs="prefix_hits")),
    # Of preempted requests, so both grow with preemptions.
    Metric("prefix_requeried", "count", "count", None, _prefix("requeried")),
    Metric("prefix_found_again", "count", "count", None, _prefix(*_AGAIN)),
    Metric("equal_requests", "count", "count", "more", _tokens(lambda o: o.equal_requests)),
    Metric("equal_tokens", "share", "count", "more", _tokens(lambda o: o.equal_token_share)),
    Metric("unplanned_steps", "count", "count", "less", _unplanned),
    Metric("problems", "count", "count", "less",
           lambda _, arm: len(arm.problems) if arm.status == "finished" else None),
    Metric("attention_error", "share", "measured", "less", _error("attention")),
    Metric("logit_error", "mean", "measured", "less", _error("logit_mean")),
    Metric("generate_s", "seconds", "time", "less", Field("generate_s")),
    Metric("tokens_per_s", "rate", "time", "more", Field("tokens_per_s")),
    *(Metric(f"{name}_s", "seconds", "time", "less", mean, statistic("mean", _noun(name)))
      for name, mean in _MEANS.items()),
    Metric("mean_request_s", "seconds", "time", "less", Field("mean_request_s")),
    Metric("running_mean", "mean", "time", "more", Field("mean_running"),
           statistic("over_time", _noun("running"))),
    Metric("load_s", "seconds", "time", "less", Field("load_s")),
    Metric("import_s", "seconds", "time", "less", Field("import_s")),
    Metric("process_peak", "bytes", "measured", "less", Field("process_peak")),
    Metric("channels_apart", "count", "measured", "less", _disagreeing_channels),
)  # fmt: skip
# Additional metrics of an experiment.
_EXPERIMENTS = (
    # Paging admits requests at its peak that it preempts later: more is no gain.
    Metric("running_peak", "count", "count", named=statistic("most", _noun("running"))),
    Metric("usable_blocks", "count", "count"),
    _over_steps("running_over_steps", _noun("running"), "more"),
    # At a given arrival rate, higher concurrency means slower requests: no better direction.
    _over_steps("running_at_rate", _noun("running_at_rate")),
    Metric("live_peak", "count", "count", named=statistic("most", _slots("live"))),
    _over_steps("allocated_mean", _slots("allocated")),
    Metric("waste", "share", "count", "less"),
    Metric("reserved_swing", "share", "count", "less"),
    _over_steps("table_entries", _noun("table_entries")),
    Metric("usable_slots", "count", "count"),
    _over_steps("unshared_slots", _noun("unshared_slots")),
    _over_steps("held_slots", _noun("held_slots")),
    Metric("shared_slots", "count", "count", named=statistic("most", _noun("shared_slots"))),
    Metric("saved", "share", "count", "more"),
    Metric("copied_slots", "count", "count", "less"),
    Metric("recomputed_tokens", "count", "count", "less"),
    Metric("computed", "count", "count", "less"),
    Metric("block_bytes", "bytes", "count", "less"),
    Metric("logit_error_share", "share", "measured", "less"),
    Metric("same_token", "share", "measured", "more"),
    Metric("error_positions", "count", "measured"),
    *(Metric(f"{name}_p{percent}_s", "seconds", "time", "less",
             named=statistic("percentile", _noun(name), n=percent))
      for name in _TIMES for percent in PERCENTILES),
    *(Metric(f"{name}_{part}_s", "seconds", "time", "less", named=statistic(stat, _noun(name)))
      for name in _TIMES for part, stat in (("median", "median"), ("max", "most"))),
    Metric("per_token_s", "seconds", "time", "less", named=statistic("mean", _noun("per_token"))),
    Metric("step_s", "seconds", "time", "less"),
    Metric("decode_step_s", "seconds", "time", "less"),
    Metric("loop_latency_s", "seconds", "time", "less"),
    Metric("loop_latency_most_s", "seconds", "time", "less"),
    Metric("requests_per_s", "rate", "time", "more"),
    Metric("succeeded", "share", "time", "more"),
    # Both show whether a queue grows: no better direction.
    Metric("kept_up", "share", "time"),
    Metric("later_tokens", "mean", "time"),
    Metric("rest", "mean", "time", "less"),
    Metric("slowest", "mean", "time", "less"),
    Metric("first_ttft_s", "seconds", "time", "less"),
    Metric("later_ttft_s", "seconds", "time", "less"),
    Metric("lookup_contiguous_s", "seconds", "time", "less"),
    Metric("lookup_ordered_s", "seconds", "time", "less"),
    Metric("lookup_scattered_s", "seconds", "time", "less"),
    Metric("lookup_share", "share", "time", "less"),
    Metric("lookup_of_step", "share", "time", "less"),
    Metric("refused_steps", "count", "count", "less"),
    Metric("first_step", "count", "count"),
    Metric("free", "bytes", "count"),
    Metric("largest", "bytes", "count"),
    Metric("needed", "bytes", "count"),
    Metric("urgent_first_steps", "mean", "count", "less"),
    Metric("patient_first_steps", "mean", "count", "less"),
    Metric("urgent_first_s", "seconds", "time", "less"),
    Metric("patient_first_s", "seconds", "time", "less"),
)  # fmt: skip
# Additional metrics of a benchmark.
_BENCHMARKS = (
    Metric("useful_tokens_per_s", "rate", "time", "more"),
    Metric("prefill_s", "seconds", "time", "less"),
    Metric("prefill_share", "share", "time", "more"),
    Metric("decode_share", "share", "time", "more"),
    Metric("decode_requests", "count", "count"),
    Metric("allocated_peak_bytes", "bytes", "count", named=statistic("most", _term("allocated"))),
    Metric("running_while_waiting", "mean", "time", "more"),
)
_IN_ARENAS = (
    "refused_steps", "steps", "running_peak", "running_over_steps", "first_step", "free",
    "largest", "needed",
)  # fmt: skip
# Metrics of the contiguous arenas compared with the paged arm.
_ARENAS = tuple(
    Metric(f"{arena}_{metric.name}", metric.unit, metric.kind, metric.better, named=statistic(
        "arena", metric.label, arena=message(f"experiments.arena.{arena}").model_dump()))
    for arena in FITS for metric in (*_RUN, *_EXPERIMENTS) if metric.name in _IN_ARENAS
)  # fmt: skip
_STATES = tuple(state.value for state in SlotState)
# Additional metrics of a simulation, over its time.
_SIMULATIONS = (
    *(Metric(f"{name}_of_pool", "share", "count", better, named=statistic("of_pool", _term(name)))
      for name, better in _OF_POOL.items()),
    *(Metric(f"{name}_mean_share", "share", "count",
             named=statistic("mean", _term(name)))
      for name in (*_STATES, "written_later", "never_written")),
    *(Metric(f"{name}_peak_share", "share", "count",
             named=statistic("most", _term(name))) for name in _STATES),
    Metric("waiting_mean", "mean", "time", named=statistic("over_time", _noun("waiting"))),
    Metric("waiting_peak", "count", "count", named=statistic("most", _noun("waiting"))),
    *(Metric(f"{name}_busy_mean", "mean", "time", named=statistic("busy", _noun(name)))
      for name in ("running", "waiting")),
    *(Metric(f"{name}_p{percent}", "count", "time",
             named=statistic("percentile", _noun(name), n=percent))
      for name in ("running", "waiting") for percent in (50, 99)),
    Metric("pool", "bytes", "count"),
    Metric("pool_slots", "count", "count"),
    Metric("arrived", "count", "count"),
    Metric("refused", "count", "count"),
    Metric("preempted_requests", "count", "count"),
    Metric("preempted_most", "count", "count"),
    Metric("computed_tokens", "count", "count"),
    Metric("pad_tokens", "count", "count"),
    Metric("ended_tokens", "count", "count"),
    Metric("swapped_bytes", "bytes", "count"),
    Metric("grown_slots", "count", "count"),
    Metric("copy_peak_slots", "count", "count"),
    Metric("batches", "count", "count"),
    Metric("hits_first_share", "share", "count"),
    Metric("hits_own_share", "share", "count"),
    Metric("free_run_mean", "count", "count"),
    Metric("free_run_least", "count", "count"),
    Metric("fragmentation_share", "share", "count"),
    Metric("span_s", "seconds", "time"),
    Metric("busy_s", "seconds", "time"),
)  # fmt: skip
METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_RUN, *_EXPERIMENTS, *_ARENAS, *_SIMULATIONS, *_BENCHMARKS)
}
# Metrics of an ordinary run.
ARM_METRICS = {metric.name: metric for metric in _RUN}
# Rows of a run's tables: on the console and page, and in Markdown.
SHOWN = (
    "reserved_bytes", "allocated_bytes", "live_bytes", "wasted_bytes", "live_share",
    "live_share_mean", "fits", "kv_bytes", "process_peak", "load_s", "generate_s",
    "mean_request_s", "tokens_per_s", "moved_bytes", "preemptions", "swapped_blocks",
    "copied_blocks",
)  # fmt: skip
SHOWN_IN_MARKDOWN = (
    "reserved_bytes", "allocated_bytes", "live_bytes", "wasted_bytes", "live_share", "fits",
    "tokens_per_s", "preemptions",
)  # fmt: skip
