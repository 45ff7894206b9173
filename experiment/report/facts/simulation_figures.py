"""All figures of a simulation: path in a result, unit, reason if missing.

    sim.json  cells: [{policy, result}, ...]
                                  └─ value(result) ─► console, summary.csv, report.html

All reporters use this list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiment.analysis.experiment_results import Number
from experiment.analysis.metrics import METRICS, Metric
from experiment.analysis.percentiles import is_enough
from experiment.text.messages import Message, message
from kvsim.accounting.slots import ALLOCATED_STATES, OTHER_STATES, SlotState
from kvsim.contiguous.reservation import POLICIES
from kvsim.sim.config import CONTIGUOUS

Result = Mapping[str, Any]
Value = Number | None
STATES = tuple(state.value for state in SlotState)
ALLOCATED = tuple(state.value for state in ALLOCATED_STATES)
OTHER = tuple(state.value for state in OTHER_STATES)


@dataclass(frozen=True, slots=True)
class SimulationFigure:
    """One row of the comparison.

    Attributes:
        name: column in summary.csv.
        value: None if the policy has none.
        reason: key under ``sim.reason`` for a result without the figure.
        state: slot state of the figure, if any.
        metric: name of its metric, if different.
    """

    name: str
    value: Callable[[Result], Value]
    reason: Callable[[Result], str] = lambda _: "nothing_ran"
    state: str | None = None
    metric: str | None = None

    @property
    def about(self) -> Metric:
        """Metric with unit and label."""
        return METRICS[self.metric or self.name]

    @property
    def key(self) -> str | None:
        """Path in a result; None if computed from several values."""
        return ".".join(self.value.path) if isinstance(self.value, Field) else None


def rounding_note(policies: Iterable[str]) -> Message | None:
    """Note on the rounding of Orca's policies; None without one."""
    names = ", ".join(policy for policy in policies if policy in POLICIES)
    return message("sim.orca", policies=names) if names else None


def allocated_mean(result: Result) -> float:
    """Allocated slots, mean over time."""
    return sum(_state(result, name) for name in ALLOCATED)


def live_mean(result: Result) -> float:
    """Live slots, mean over time."""
    return _state(result, "live")


def waste_share(result: Result) -> float | None:
    """(allocated - live) / allocated, means over time."""
    allocated = allocated_mean(result)
    return 1 - live_mean(result) / allocated if allocated else None


def policy_of(result: Result) -> str:
    """Policy of a result."""
    return str(result["config"]["policy"])


def _state(result: Result, name: str) -> float:
    use = result["states"].get(name)
    return float(use["mean_slots"]) if use else 0.0


def _of_pool(slots: Callable[[Result], float]) -> Callable[[Result], Value]:
    return lambda result: slots(result) / result["pool_slots"]


@dataclass(frozen=True, slots=True)
class Field:
    """Read a value at a path of a result, if it applies to the result's policy.

    The value is divided by ``of``: 100 converts percentages to shares.
    """

    path: tuple[str, ...]
    of: int = 1
    applies: Callable[[Result], bool] = lambda _: True

    def __call__(self, result: Result) -> Value:
        """Value of the result; None if missing."""
        value: Any = result if self.applies(result) else None
        for name in self.path:
            if value is None:
                return None
            value = value.get(name)
        if not isinstance(value, int | float):
            return None
        return value if self.of == 1 else value / self.of


def _at(*path: str) -> Field:
    return Field(path)


def _percent(*path: str) -> Field:
    return Field(path, 100)


def _why(key: str) -> Callable[[Result], str]:
    """The same reason for every result."""
    return lambda _: key


def _figures_of_states() -> Iterator[SimulationFigure]:
    for name in STATES:
        for part in ("mean", "peak"):
            share = _percent("states", name, f"{part}_percent")
            yield SimulationFigure(f"{name}_{part}_share", share, _why("no_such_state"), name)
        if name == "unwritten":
            for part in ("written_later", "never_written"):
                mean = _percent("unwritten", part, "mean_percent")
                yield SimulationFigure(f"{part}_mean_share", mean, _no_reservation, part)


def _no_reservation(result: Result) -> str:
    slabs = policy_of(result) in ("static", "slabs")
    return "slab_not_split" if slabs else "reserves_nothing"


def _no_sharing(result: Result) -> str:
    return "shares_nothing" if policy_of(result) in CONTIGUOUS else "nothing_ran"


def _no_hits(result: Result) -> str:
    if policy_of(result) != "paged+prefix":
        return "no_prefix_cache"
    nothing = not (result["prefix"] or {}).get("queried_first")
    return "nothing_asked" if nothing else "nothing_came_back"


def _no_pieces(result: Result) -> str:
    return "blocks_fit_anywhere" if policy_of(result) not in CONTIGUOUS else "no_pieces"


def _growing_only(*path: str) -> Field:
    """Field of the policies that copy growing rows."""
    return Field(path, applies=lambda result: policy_of(result) == "growing")


def _paged_only(*path: str) -> Field:
    return Field(path, applies=lambda result: policy_of(result) not in CONTIGUOUS)


def _refused(result: Result) -> int:
    return sum(each["count"] for each in result["requests"]["refused"])


def _counts(name: str) -> Iterator[SimulationFigure]:
    for part in ("mean", "busy_mean", "p50", "p99"):
        yield SimulationFigure(f"{name}_{part}", _at(name, part))
    yield SimulationFigure(f"{name}_max", _at(name, "max"), metric=f"{name}_peak")


def _percentiles(name: str, metric: str, *parts: str) -> Iterator[SimulationFigure]:
    for part in parts:
        value = _at(f"{name}_s", part) if part == "mean" else _enough(f"{name}_s", part)
        named = f"{metric}_s" if part == "mean" else f"{metric}_{part}_s"
        yield SimulationFigure(f"{name}_{part}_s", value, _few(f"{name}_s"), metric=named)


def _enough(name: str, part: str) -> Field:
    """A percentile over requests; None if there are too few."""
    count, percent = _at(name, "count"), int(part[1:])
    return Field((name, part), applies=lambda each: is_enough(int(count(each) or 0), percent))


def _few(name: str) -> Callable[[Result], str]:
    count = _at(name, "count")
    return lambda result: "few_requests" if count(result) else "nothing_ended"


GROUPS: Mapping[str, tuple[SimulationFigure, ...]] = {
    "pool": (
        SimulationFigure("pool_bytes_bytes", _at("pool_bytes"), metric="pool"),
        SimulationFigure("pool_slots", _at("pool_slots")),
        SimulationFigure(
            "allocated_mean_share", _of_pool(allocated_mean), metric="allocated_of_pool"
        ),
        SimulationFigure("used_mean_share", _of_pool(live_mean), metric="live_of_pool"),
        SimulationFigure(
            "wasted_mean_share",
            _of_pool(lambda result: allocated_mean(result) - live_mean(result)),
            metric="wasted_of_pool",
        ),
        SimulationFigure(
            "waste_of_allocated_share", waste_share, _why("nothing_held"), metric="waste"
        ),
    ),
    "states": tuple(_figures_of_states()),
    "requests": (
        SimulationFigure("arrived", _at("requests", "arrived")),
        SimulationFigure("finished_requests", _at("requests", "finished"), metric="requests"),
        SimulationFigure("refused", _refused),
        *_counts("running"),
        *_counts("waiting"),
    ),
    "work": (
        SimulationFigure(
            "preemptions", _paged_only("preemptions", "total"), _why("never_preempts")
        ),
        SimulationFigure(
            "preempted_requests", _paged_only("preemptions", "requests"), _why("never_preempts")
        ),
        SimulationFigure(
            "preempted_most", _paged_only("preemptions", "max_of_one"), _why("never_preempts")
        ),
        SimulationFigure("output_tokens", _at("tokens", "output"), metric="new_tokens"),
        SimulationFigure("computed_tokens", _at("tokens", "computed")),
        SimulationFigure(
            "recomputed_tokens", _paged_only("tokens", "recomputed"), _why("never_preempts")
        ),
        SimulationFigure("pad_tokens", _at("tokens", "pads")),
        SimulationFigure("ended_tokens", _at("tokens", "ended")),
        SimulationFigure(
            "swapped_bytes", _paged_only("preemptions", "swapped_bytes"), _why("never_preempts")
        ),
        SimulationFigure("copied_blocks", _paged_only("copies", "blocks"), _why("no_blocks")),
        SimulationFigure(
            "copied_slots",
            _growing_only("copies", "grown_slots"),
            _why("no_growth"),
            metric="grown_slots",
        ),
        SimulationFigure(
            "copy_peak_slots", _growing_only("copies", "peak_slots"), _why("no_growth")
        ),
        SimulationFigure("batches", _at("batches"), _why("no_batches")),
    ),
    "sharing": (
        SimulationFigure(
            "sharing_saved_share", _paged_only("sharing", "share"), _no_sharing, metric="saved"
        ),
        SimulationFigure("hits_first_share", _at("prefix", "share_of_first"), _no_hits),
        SimulationFigure("hits_own_share", _at("prefix", "share_own_of_again"), _no_hits),
        SimulationFigure("free_run_mean", _at("free_run", "mean_slots"), _no_pieces),
        SimulationFigure("free_run_least", _at("free_run", "low_slots"), _no_pieces),
        SimulationFigure(
            "fragmentation_share", _at("free_run", "external_fragmentation"), _no_pieces
        ),
    ),
    "time": (
        *_percentiles("queue_wait", "wait", "mean", "p50", "p99"),
        *_percentiles("first_token", "first_token", "mean", "p50", "p90", "p99"),
        *_percentiles("latency", "latency", "mean", "p50", "p90", "p99"),
        *_percentiles("per_output_token", "per_token", "p50", "p99"),
        SimulationFigure(
            "throughput_requests_per_s", _at("requests_per_s"), metric="requests_per_s"
        ),
        SimulationFigure(
            "throughput_tokens_per_s", _at("output_tokens_per_s"), metric="tokens_per_s"
        ),
        SimulationFigure("span_s", _at("span_s")),
        SimulationFigure("busy_s", _at("busy_s")),
        SimulationFigure("steps", _at("steps")),
    ),
}
FIGURES: tuple[SimulationFigure, ...] = tuple(
    figure for group in GROUPS.values() for figure in group
)
