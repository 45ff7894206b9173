"""Every metric of an ordinary run: its unit, how it came about, and which direction is better.

    count    decided by lengths and settings: the same in each run of them      may be gated
             (by the model's scores, too, where these decide tokens, beams or ends)
    time     depends on the clock of the machine                               never gated
    measured read from the machine: memory of processes, rounding of floats    never gated

Those of an experiment are in :mod:`experiment.experiments.figures`, in the same terms. A direction
is named only where nobody could want the other one: reserved bytes are equal by design, and more is
handed out where more requests run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from experiment.analysis.results import ArmResult, RequestResult, Results, TokenComparison
from experiment.compare.results import Better, Kind, Number, Unit

Value = Callable[[Results, ArmResult], Number | None]
_STATES: dict[str, Better | None] = {
    "reserved": None, "allocated": None, "live": None, "wasted": "less", "padding": "less",
    "finished": "less", "unwritten": "less", "rounding": "less", "hole": "less", "cached": None,
    "engine": None, "watermark": None, "free": None,
}  # fmt: skip
_BYTES = ("reserved", "allocated", "live", "wasted")
_FIRST = ("hit_cross", "hit_batch")  # at a request's first admission
_AGAIN = ("hit_own", "hit_again")  # when it comes back after a preemption


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by its name; ``value`` is None where an arm has none."""

    name: str
    unit: Unit
    kind: Kind
    better: Better | None
    value: Value


def _arm(name: str) -> Value:
    return lambda _, arm: getattr(arm, name)


def _peak_slots(name: str) -> Value:
    return lambda _, arm: round(getattr(arm.peak, name)) if arm.peak else None


def _peak_bytes(name: str) -> Value:
    return lambda _, arm: arm.bytes_of(getattr(arm.peak, name)) if arm.peak else None


def _mean_slots(name: str) -> Value:
    return lambda _, arm: getattr(arm.mean, name) if arm.mean else None


def _of_requests(seconds: Callable[[RequestResult], float | None]) -> Value:
    def mean(_: Results, arm: ArmResult) -> float | None:
        known = [value for r in arm.requests if (value := seconds(r)) is not None]
        return fmean(known) if known else None

    return mean


def _tokens(value: Callable[[TokenComparison], Number | None]) -> Value:
    """Of the comparison with the reference arm's tokens; the reference itself has none."""
    return lambda results, arm: next(
        (value(one) for one in results.tokens if one.arm == arm.arm), None
    )


def _prefix(*names: str, theirs: str | None = None) -> Value:
    """Of the prefix cache, in tokens; ``theirs``: of vLLM's statistics, of first admissions too."""

    def value(_: Results, arm: ArmResult) -> int | None:
        if arm.prefix_cache is not None:
            return sum(arm.prefix_cache[name] for name in names)
        if theirs is None or arm.engine is None or not arm.engine.prefix_queries:
            return None
        found: int = getattr(arm.engine, theirs)
        return found

    return value


def _error(name: str) -> Value:
    def value(_: Results, arm: ArmResult) -> Number | None:
        found = arm.quantization.get(name) if arm.quantization else None
        return found if isinstance(found, int | float) else None

    return value


def _ended(_: Results, arm: ArmResult) -> int | None:
    return len(arm.requests) if arm.status == "finished" else None


def _problems(_: Results, arm: ArmResult) -> int | None:
    return len(arm.problems) if arm.status == "finished" else None


def _apart(_: Results, arm: ArmResult) -> int | None:
    found = arm.reconciliation
    if found is None or all(row.agrees is None for row in found.rows):
        return None
    return sum(row.agrees is False for row in found.rows)


def _unplanned(_: Results, arm: ArmResult) -> int | None:
    check = arm.simulator
    return None if check is None or check.equal_steps is None else check.steps - check.equal_steps


def _slots() -> Iterable[Metric]:
    for name, better in _STATES.items():
        yield Metric(f"{name}_slots", "count", "count", better, _peak_slots(name))
    for name in _BYTES:
        yield Metric(f"{name}_bytes", "bytes", "count", _STATES[name], _peak_bytes(name))
    for name in _BYTES:
        yield Metric(f"{name}_slots_mean", "mean", "time", _STATES[name], _mean_slots(name))


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *_slots(),
        Metric("live_share", "share", "count", "more",
               lambda _, arm: arm.peak.utilisation if arm.peak else None),
        Metric("fits", "count", "count", "more", _arm("fits")),
        Metric("fits_plain", "count", "count", "more", _arm("fits_plain")),
        Metric("slot_bytes", "bytes", "count", None, _arm("slot_bytes")),
        Metric("block_size", "count", "count", None, _arm("block_size")),
        Metric("blocks", "count", "count", None, _arm("blocks")),
        Metric("kv_bytes", "bytes", "count", None, _arm("tensor_bytes")),
        Metric("budget_bytes", "bytes", "count", None, _arm("budget_bytes")),
        Metric("requests", "count", "count", "more", _ended),
        Metric("new_tokens", "count", "count", None, _arm("new_tokens")),
        Metric("steps", "count", "count", "less", _arm("steps")),
        Metric("preemptions", "count", "count", "less", _arm("preemptions")),
        Metric("copied_blocks", "count", "count", "less", _arm("copied_blocks")),
        Metric("swapped_blocks", "count", "count", "less", _arm("swapped_blocks")),
        Metric("shared_peak", "count", "count", None, _arm("shared_peak")),
        Metric("moved_bytes", "bytes", "count", "less", _arm("moved_bytes")),
        Metric("prefix_queried", "count", "count", None,
               _prefix("queried", theirs="prefix_queries")),
        Metric("prefix_found", "count", "count", "more", _prefix(*_FIRST, theirs="prefix_hits")),
        # Of preempted requests, and so more of both where more are preempted.
        Metric("prefix_requeried", "count", "count", None, _prefix("requeried")),
        Metric("prefix_found_again", "count", "count", None, _prefix(*_AGAIN)),
        Metric("equal_requests", "count", "count", "more", _tokens(lambda o: o.equal_requests)),
        Metric("equal_tokens", "share", "count", "more", _tokens(lambda o: o.equal_token_share)),
        Metric("unplanned_steps", "count", "count", "less", _unplanned),
        Metric("problems", "count", "count", "less", _problems),
        Metric("attention_error", "share", "measured", "less", _error("attention")),
        Metric("logit_error", "mean", "measured", "less", _error("logit_mean")),
        Metric("generate_s", "seconds", "time", "less", _arm("generate_s")),
        Metric("tokens_per_s", "rate", "time", "more", _arm("tokens_per_s")),
        Metric("first_token_s", "seconds", "time", "less",
               _of_requests(lambda r: r.first_token_s)),
        Metric("latency_s", "seconds", "time", "less", _of_requests(lambda r: r.latency_s)),
        Metric("wait_s", "seconds", "time", "less", _of_requests(lambda r: r.wait_s)),
        Metric("running_mean", "mean", "time", "more", _arm("mean_running")),
        Metric("load_s", "seconds", "time", "less", _arm("load_s")),
        Metric("import_s", "seconds", "time", "less", _arm("import_s")),
        Metric("process_peak", "bytes", "measured", "less", _arm("process_peak")),
        Metric("channels_apart", "count", "measured", "less", _apart),
    )
}  # fmt: skip
