"""Every figure of a simulation: where it stands in a result, its unit, why it may be missing.

    sim.json  cells: [{policy, result}, ...]
                                  └─ Figure.value(result) ─► console, summary.csv, report.html

One list serves all reporters, so they cannot differ.
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
class Figure:
    """One row of the comparison.

    Attributes:
        name: of its column in summary.csv.
        value: None where the policy has none.
        reason: of a result without the figure; the key of a text under ``sim.reason``.
        state: for the figures of a slot state, its name.
        metric: the name of its metric, where that is another one.
    """

    name: str
    value: Callable[[Result], Value]
    reason: Callable[[Result], str] = lambda _: "nothing_ran"
    state: str | None = None
    metric: str | None = None

    @property
    def about(self) -> Metric:
        """Its unit and label."""
        return METRICS[self.metric or self.name]

    @property
    def key(self) -> str | None:
        """Where it stands in a result; None of what is worked out of several values."""
        return ".".join(self.value.path) if isinstance(self.value, Field) else None


def rounding_note(policies: Iterable[str]) -> Message | None:
    """Which of the policies are Orca's, and how they round; None without one."""
    names = ", ".join(policy for policy in policies if policy in POLICIES)
    return message("sim.orca", policies=names) if names else None


def allocated_mean(result: Result) -> float:
    """Slots handed to requests, mean over time."""
    return sum(_state(result, name) for name in ALLOCATED)


def live_mean(result: Result) -> float:
    """Slots that hold a token still needed, mean over time."""
    return _state(result, "live")


def waste_share(result: Result) -> float | None:
    """Slots handed out that are not live / slots handed out, means over time."""
    allocated = allocated_mean(result)
    return 1 - live_mean(result) / allocated if allocated else None


def policy_of(result: Result) -> str:
    """Which policy it is a result of."""
    return str(result["config"]["policy"])


def _state(result: Result, name: str) -> float:
    use = result["states"].get(name)
    return float(use["mean_slots"]) if use else 0.0


def _of_pool(slots: Callable[[Result], float]) -> Callable[[Result], Value]:
    return lambda result: slots(result) / result["pool_slots"]


@dataclass(frozen=True, slots=True)
class Field:
    """The value at a path of a result, where it applies to the result's policy.

    It is divided by ``of``: 100 makes shares of percentages.
    """

    path: tuple[str, ...]
    of: int = 1
    applies: Callable[[Result], bool] = lambda _: True

    def __call__(self, result: Result) -> Value:
        """The value; None where there is none."""
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
    """A reason that is the same for every result."""
    return lambda _: key


def _figures_of_states() -> Iterator[Figure]:
    for name in STATES:
        for part in ("mean", "peak"):
            share = _percent("states", name, f"{part}_percent")
            yield Figure(f"{name}_{part}_share", share, _why("no_such_state"), name)
        if name == "unwritten":
            for part in ("written_later", "never_written"):
                mean = _percent("unwritten", part, "mean_percent")
                yield Figure(f"{part}_mean_share", mean, _no_reservation, part)


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
    """Of rows that are copied as they grow."""
    return Field(path, applies=lambda result: policy_of(result) == "growing")


def _paged_only(*path: str) -> Field:
    return Field(path, applies=lambda result: policy_of(result) not in CONTIGUOUS)


def _refused(result: Result) -> int:
    return sum(each["count"] for each in result["requests"]["refused"])


def _counts(name: str) -> Iterator[Figure]:
    for part in ("mean", "busy_mean", "p50", "p99"):
        yield Figure(f"{name}_{part}", _at(name, part))
    yield Figure(f"{name}_max", _at(name, "max"), metric=f"{name}_peak")


def _percentiles(name: str, metric: str, *parts: str) -> Iterator[Figure]:
    for part in parts:
        value = _at(f"{name}_s", part) if part == "mean" else _enough(f"{name}_s", part)
        named = f"{metric}_s" if part == "mean" else f"{metric}_{part}_s"
        yield Figure(f"{name}_{part}_s", value, _few(f"{name}_s"), metric=named)


def _enough(name: str, part: str) -> Field:
    """A percentile over requests; None where they are too few for it to mean anything."""
    count, percent = _at(name, "count"), int(part[1:])
    return Field((name, part), applies=lambda each: is_enough(int(count(each) or 0), percent))


def _few(name: str) -> Callable[[Result], str]:
    count = _at(name, "count")
    return lambda result: "few_requests" if count(result) else "nothing_ended"


GROUPS: Mapping[str, tuple[Figure, ...]] = {
    "pool": (
        Figure("pool_bytes_bytes", _at("pool_bytes"), metric="pool"),
        Figure("pool_slots", _at("pool_slots")),
        Figure("allocated_mean_share", _of_pool(allocated_mean), metric="allocated_of_pool"),
        Figure("used_mean_share", _of_pool(live_mean), metric="live_of_pool"),
        Figure(
            "wasted_mean_share",
            _of_pool(lambda result: allocated_mean(result) - live_mean(result)),
            metric="wasted_of_pool",
        ),
        Figure("waste_of_allocated_share", waste_share, _why("nothing_held"), metric="waste"),
    ),
    "states": tuple(_figures_of_states()),
    "requests": (
        Figure("arrived", _at("requests", "arrived")),
        Figure("finished_requests", _at("requests", "finished"), metric="requests"),
        Figure("refused", _refused),
        *_counts("running"),
        *_counts("waiting"),
    ),
    "work": (
        Figure("preemptions", _paged_only("preemptions", "total"), _why("never_preempts")),
        Figure(
            "preempted_requests", _paged_only("preemptions", "requests"), _why("never_preempts")
        ),
        Figure("preempted_most", _paged_only("preemptions", "max_of_one"), _why("never_preempts")),
        Figure("output_tokens", _at("tokens", "output"), metric="new_tokens"),
        Figure("computed_tokens", _at("tokens", "computed")),
        Figure("recomputed_tokens", _paged_only("tokens", "recomputed"), _why("never_preempts")),
        Figure("pad_tokens", _at("tokens", "pads")),
        Figure("ended_tokens", _at("tokens", "ended")),
        Figure(
            "swapped_bytes", _paged_only("preemptions", "swapped_bytes"), _why("never_preempts")
        ),
        Figure("copied_blocks", _paged_only("copies", "blocks"), _why("no_blocks")),
        Figure(
            "copied_slots",
            _growing_only("copies", "grown_slots"),
            _why("no_growth"),
            metric="grown_slots",
        ),
        Figure("copy_peak_slots", _growing_only("copies", "peak_slots"), _why("no_growth")),
        Figure("batches", _at("batches"), _why("no_batches")),
    ),
    "sharing": (
        Figure("sharing_saved_share", _paged_only("sharing", "share"), _no_sharing, metric="saved"),
        Figure("hits_first_share", _at("prefix", "share_of_first"), _no_hits),
        Figure("hits_own_share", _at("prefix", "share_own_of_again"), _no_hits),
        Figure("free_run_mean", _at("free_run", "mean_slots"), _no_pieces),
        Figure("free_run_least", _at("free_run", "low_slots"), _no_pieces),
        Figure("fragmentation_share", _at("free_run", "external_fragmentation"), _no_pieces),
    ),
    "time": (
        *_percentiles("queue_wait", "wait", "mean", "p50", "p99"),
        *_percentiles("first_token", "first_token", "mean", "p50", "p90", "p99"),
        *_percentiles("latency", "latency", "mean", "p50", "p90", "p99"),
        *_percentiles("per_output_token", "per_token", "p50", "p99"),
        Figure("throughput_requests_per_s", _at("requests_per_s"), metric="requests_per_s"),
        Figure("throughput_tokens_per_s", _at("output_tokens_per_s"), metric="tokens_per_s"),
        Figure("span_s", _at("span_s")),
        Figure("busy_s", _at("busy_s")),
        Figure("steps", _at("steps")),
    ),
}
FIGURES: tuple[Figure, ...] = tuple(figure for group in GROUPS.values() for figure in group)
