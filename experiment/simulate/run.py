"""Simulate the cells of a comparison one after another, and collect their results.

cells         every policy, as configured
block sizes   paged policies, other block sizes
budgets       every policy, other budgets
preemption    the block sizes with recompute and with swap: preemption cost
samples       paged policies, other numbers of samples per prompt
prefixes      the trace's blocks through caches of other sizes, without a clock
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, get_args

from experiment.analysis.preemption import PreemptionCounts, describe_preemptions
from experiment.record.simulation import SCHEMA_VERSION
from experiment.simulate.names import gpu_of, model_of, policies_of
from experiment.simulate.setup import (
    Limits,
    Memory,
    Setup,
    check_replayed,
    head_of,
    length_limit,
    make_setup,
)
from experiment.simulate.trace import Loaded, TraceOptions, load
from experiment.text.errors import UserError, user_error
from experiment.text.messages import Message, message
from experiment.workload.kvsim_errors import simulation_message
from kvsim.core.limits import PreemptionKind
from kvsim.latency.roofline import BatchLatency
from kvsim.planning.preemption_cost import recompute_cost, swap_cost
from kvsim.planning.remedies import Outcome, Trial, find_remedies
from kvsim.sim.config import CONTIGUOUS, PolicyName, SimulationError
from kvsim.sim.prefix_replay import EVICTIONS, NoHashIdsError, References, collect, replay_prefixes
from kvsim.sim.simulator import SimResult, simulate

Tick = Callable[[int], None]
# Ratio of consecutive cache sizes in the default sweep over capacities.
_CAPACITY_FACTOR = 4
_CAPACITIES = 6
_REPLAYS_OF_ONE = 16
# Longer traces are not searched for remedies, which takes some twenty simulations.
_REMEDIES_UP_TO = 2_000
PREEMPTIONS: tuple[PreemptionKind, ...] = get_args(PreemptionKind)


class Watcher(Protocol):
    """Show progress."""

    def begin(self, what: Message, weight: int, requests: bool = True) -> Tick:
        """Start a part of ``weight``; call the result with the completed amount.

        ``requests``: both are numbers of requests.
        """


class _Silent:
    def begin(self, what: Message, weight: int, requests: bool = True) -> Tick:  # noqa: ARG002
        return lambda _: None


@dataclass(frozen=True, slots=True)
class Question:
    """A comparison to run.

    Attributes:
        capacities: sizes of prefix caches in blocks of the trace's size; None: chosen from the
            trace.
    """

    stream: Loaded
    setup: Setup
    policies: Sequence[PolicyName]
    block_sizes: Sequence[int] = ()
    budgets: Sequence[int] = ()
    samples: Sequence[int] = ()
    capacities: Sequence[int] | None = None

    @property
    def paged(self) -> list[PolicyName]:
        """Policies that allocate memory in blocks."""
        return [policy for policy in self.policies if policy not in CONTIGUOUS]


@dataclass(slots=True)
class Found:
    """Results so far, as plain values."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    block_sizes: list[dict[str, Any]] = field(default_factory=list)
    budgets: list[dict[str, Any]] = field(default_factory=list)
    preemption: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    prefixes: dict[str, Any] | None = None
    preempting: list[dict[str, Any]] = field(default_factory=list)
    notes: list[Message] = field(default_factory=list)
    interrupted: bool = False

    @property
    def failed(self) -> list[Message]:
        """Reasons of cells without a result."""
        return [Message.model_validate(cell["error"]) for cell in self.cells if cell["error"]]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for the record."""
        return {
            "cells": self.cells,
            "block_sizes": self.block_sizes,
            "budgets": self.budgets,
            "preemption": self.preemption,
            "samples": self.samples,
            "prefixes": self.prefixes,
            "preempting": self.preempting,
            "notes": [note.model_dump() for note in self.notes],
            "interrupted": self.interrupted,
        }


def ask(
    trace: TraceOptions,
    model: str,
    gpu: str,
    memory: Memory = Memory(),  # noqa: B008
    limits: Limits = Limits(),  # noqa: B008
    *,
    policies: str | None = None,
    max_length: int | None = None,
    block_size: int = 16,
    latency: Path | None = None,
    samples: int | None = None,
    beams: int = 1,
    branching: float | None = None,
    seed: int = 0,
    block_sizes: Sequence[int] = (),
    budgets: Sequence[int] = (),
    sample_counts: Sequence[int] = (),
    capacities: Sequence[int] | None = None,
) -> Question:
    """Read a trace and validate the input before any simulation.

    Args:
        model, gpu: names in the catalogue.
        policies: comma-separated names; None: the default ones.
        max_length: tokens; None: as the longest request needs.
        block_size: tokens. ``block_sizes``, ``budgets`` (bytes), ``sample_counts`` and
            ``capacities`` (blocks): additional values to simulate.
        latency: a file written by ``calibrate``; None: the roofline of model and GPU.
        samples, beams: sequences per request; ``branching``: the share of steps at which a beam
            branches.

    Raises:
        UserError: an unknown name, an invalid trace, or not enough memory.
    """
    if beams > 1 and (samples or 1) > 1:
        raise user_error("error.sim.unused_beside", flag="--samples", other="--beams")
    if branching is not None and beams == 1:
        raise user_error("error.sim.unused", flag="--branching", other="--beams")
    if beams > limits.max_num_seqs:
        params = {"config_key": "--beams", "value": beams, "limit": limits.max_num_seqs}
        raise user_error("error.limit_le", **params)
    named, device = model_of(model, memory.weights), gpu_of(gpu)
    setup = make_setup(
        named, device, memory, max_length=max_length, block_size=block_size, latency=latency,
        limits=limits, samples=samples, beams=beams,
        branching=0.5 if branching is None else branching, seed=seed,
    )  # fmt: skip
    check_replayed(setup)
    _check_host(setup)
    chosen: Sequence[PolicyName] = policies_of(policies)
    if policies is None and (beams > 1 or (samples or 1) > 1):
        chosen = [policy for policy in chosen if policy not in CONTIGUOUS]
    for budget in budgets:
        replace(memory, budget=budget).kv(named, device)
    stream = load(replace(trace, max_length=length_limit(named, max_length)))
    if max_length is None:
        setup = setup.of_longest(stream.facts.longest)
    return Question(stream, setup, chosen, block_sizes, budgets, sample_counts, capacities)


def _check_host(setup: Setup) -> None:
    """Check that swap space holds a block; otherwise swapping would always recompute.

    Raises:
        UserError: it does not.
    """
    block, room = setup.block_size * setup.slot_bytes, setup.limits.swap_bytes
    if setup.limits.preemption == "swap" and room < block:
        raise user_error("error.sim.swap_small", size=room, block=block)


def simulate_trace(question: Question, watcher: Watcher | None = None) -> dict[str, Any]:
    """Simulate every policy; return the content of ``sim.json``.

    Raises:
        UserError: no policy can be simulated.
    """
    return recorded(start(question), run(question, watcher or _Silent()))


def start(question: Question, lang: str = "en", command: Sequence[str] = ()) -> dict[str, Any]:
    """The part of ``sim.json`` that is known before the simulation."""
    more = {"lang": lang, "command": list(command)}
    return head_of("simulation", SCHEMA_VERSION, question.setup, question.stream, **more)


def recorded(head: dict[str, Any], found: Found) -> dict[str, Any]:
    """The complete content of ``sim.json``.

    Raises:
        UserError: no policy can be simulated.
        KeyboardInterrupt: interrupted before the first result.
    """
    if any(cell["result"] for cell in found.cells):
        return head | found.to_json()
    if found.interrupted:
        raise KeyboardInterrupt
    raise UserError(found.failed[0])


def parts_of(question: Question) -> int:
    """Total number of simulated requests, as a measure of the work."""
    q, each = question, question.stream.facts.requests
    cells = len(q.policies) * (1 + len(q.budgets)) + len(q.paged) * len(q.block_sizes)
    cells += min(1, len(q.paged)) * (len(q.samples) + 2 * len(q.block_sizes))
    replays = len(EVICTIONS) * len(q.capacities or range(_CAPACITIES + 2))
    return each * cells + (replays * _replay_weight(q) if q.stream.facts.hash_ids else 0)


def _replay_weight(q: Question) -> int:
    """Weight of the cache replays, which cost a small part of a simulation."""
    return -(-q.stream.facts.requests // _REPLAYS_OF_ONE)


def run(question: Question, watcher: Watcher, found: Found | None = None) -> Found:
    """Run everything; an interruption keeps the results so far.

    ``found``: collects the results if given, so that a later interruption does not lose them.
    """
    found = Found() if found is None else found
    setup = question.setup
    spans = [cache.span for cache in setup.caches if 0 < cache.span < setup.max_length]
    if spans:
        found.notes.append(message("sim.note.windows", layers=len(spans), span=min(spans)))
    try:
        _cells(question, found, watcher)
        _note_range(question, found)
        if any(cell["result"] for cell in found.cells):
            _block_sizes(question, found, watcher)
            _budgets(question, found, watcher)
            _preemption(question, found, watcher)
            _remedies(question, found, watcher)
            _samples(question, found, watcher)
            if question.stream.facts.hash_ids:
                _prefixes(question, found, watcher)
            elif question.capacities:
                found.notes.append(message("sim.note.no_hash_ids"))
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _cells(q: Question, found: Found, watcher: Watcher) -> None:
    for policy in q.policies:
        what = message("progress.sim.cell", policy=policy)
        result, error = _one(q, q.setup, policy, (what, watcher))
        found.cells.append(
            {
                "policy": policy,
                "result": result.to_json() if result else None,
                "error": error.model_dump() if error else None,
                "speed": {
                    "seconds": result.speed.seconds,
                    "requests_per_second": result.speed.requests_per_second,
                }
                if result
                else None,
            }
        )


def _note_range(q: Question, found: Found) -> None:
    """Name policies under which batches are far from those that the latency was fitted to."""
    latency = q.setup.latency
    if not isinstance(latency, BatchLatency):
        return
    for cell in found.cells:
        running = cell["result"]["running"]["busy_mean"] if cell["result"] else None
        if running is not None and latency.is_extrapolated(running):
            least, most = map(round, latency.seen())
            params = {"policy": cell["policy"], "running": round(running)}
            found.notes.append(message("sim.note.latency_range", least=least, most=most, **params))


def _block_sizes(q: Question, found: Found, watcher: Watcher) -> None:
    setups = {size: replace(q.setup, block_size=size) for size in q.block_sizes}
    _sweep(q, found.block_sizes, "block_size", (q.paged, setups), watcher)
    if q.block_sizes and not q.paged:
        found.notes.append(message("sim.note.no_blocks"))


def _budgets(q: Question, found: Found, watcher: Watcher) -> None:
    setups = {budget: q.setup.with_budget(budget) for budget in q.budgets}
    _sweep(q, found.budgets, "budget_bytes", (q.policies, setups), watcher)


def _samples(q: Question, found: Found, watcher: Watcher) -> None:
    """Simulate samples with the first paged policy; all paged policies share alike."""
    setups = {count: replace(q.setup, samples=count, beams=1) for count in q.samples}
    _sweep(q, found.samples, "samples", (q.paged[:1], setups), watcher)
    if q.samples and not q.paged:
        found.notes.append(message("sim.note.no_samples"))


def _sweep(
    q: Question,
    points: list[dict[str, Any]],
    name: str,
    grid: tuple[Sequence[PolicyName], Mapping[int, Setup]],
    watcher: Watcher,
) -> None:
    """Add a point for each policy and setup, with its value under ``name``."""
    policies, setups = grid
    for value, setup in setups.items():
        for policy in policies:
            what = message(f"progress.sim.{name}", policy=policy, value=value)
            point = _point(*_one(q, setup, policy, (what, watcher)))
            points.append({"policy": policy, name: value, **point})


def _preemption(q: Question, found: Found, watcher: Watcher) -> None:
    """Simulate preemption with the first paged policy; all paged policies preempt alike."""
    for size in q.block_sizes if q.paged else ():
        point: dict[str, Any] = {"policy": q.paged[0], "block_size": size, "error": None}
        for kind in PREEMPTIONS:
            setup = replace(q.setup, block_size=size).preempting(kind)
            way = message(f"sim.preemption.{kind}").model_dump()
            what = message("progress.sim.preemption", policy=q.paged[0], size=size, kind=way)
            result, error = _one(q, setup, q.paged[0], (what, watcher))
            if result is None:
                point["error"] = error.model_dump() if error else None
                continue
            point[f"{kind}_preemptions"] = result.preemptions.total
            point[f"{kind}_s"] = (
                recompute_cost(result, setup.latency)
                if kind == "recompute"
                else swap_cost(result, setup.config(q.paged[0]))
            )
        found.preemption.append(point)


def _remedies(q: Question, found: Found, watcher: Watcher) -> None:
    """Why paged policies preempt, and what would prevent it."""
    many = q.stream.facts.requests > _REMEDIES_UP_TO
    for cell in found.cells:
        result, policy = cell["result"], cell["policy"]
        if policy in CONTIGUOUS or not result or not result["preemptions"]["total"]:
            continue
        config = q.setup.config(policy)
        given = Trial(
            config.shape.blocks, config.max_num_seqs, config.watermark_blocks,
            config.scheduling.admission,
        )  # fmt: skip
        remedies = []
        if not many:
            watcher.begin(message("progress.sim.remedies", policy=policy), 0)
            most = _most_kv(q.setup) // config.shape.block_bytes
            attempt = partial(_attempt, q, policy, given)
            remedies = find_remedies(given, result["running"]["max"], attempt, most)
        counts = PreemptionCounts(
            result["preemptions"]["total"], result["preemptions"]["requests"],
            result["tokens"]["recomputed"], result["tokens"]["computed"],
        )  # fmt: skip
        before = Outcome(counts.preemptions, result["span_s"], result["first_token_s"]["p50"])
        why = describe_preemptions(
            counts, Counter(), given, config.shape.block_bytes, before, remedies, "simulate"
        )
        found.preempting.append({"policy": policy, "why": why.model_dump(mode="json")})
    if found.preempting and many:
        found.notes.append(message("sim.note.no_remedies", limit=_REMEDIES_UP_TO))


def _most_kv(setup: Setup) -> int:
    """Bytes of the GPUs' memory without the weights."""
    return setup.budget.memory - setup.model.weight_bytes(setup.dtype)


def _attempt(q: Question, policy: PolicyName, given: Trial, trial: Trial) -> Outcome:
    """Simulate once with another limit."""
    setup = q.setup
    limits = replace(
        setup.limits,
        max_num_seqs=trial.max_num_seqs,
        watermark_blocks=trial.watermark_blocks,
    )
    setup = replace(setup, limits=limits)
    if trial.blocks != given.blocks:
        setup = setup.with_budget(trial.blocks * setup.block_size * setup.slot_bytes)
    name: PolicyName = "paged" if trial.admission != given.admission else policy
    result = simulate(q.stream, setup.config(name))
    return Outcome(result.preemptions.total, result.span_s, result.first_token_s.p50)


def _one(
    q: Question, setup: Setup, policy: PolicyName, shown: tuple[Message, Watcher]
) -> tuple[SimResult | None, Message | None]:
    """Run one simulation; return its result, or why there is none."""
    what, watcher = shown
    ended = watcher.begin(what, q.stream.facts.requests)
    try:
        return simulate(q.stream, setup.config(policy), ended=ended), None
    except SimulationError as error:
        return None, simulation_message(error)


def _point(result: SimResult | None, error: Message | None) -> dict[str, Any]:
    """The values of a simulation that a sweep records."""
    if result is None:
        return {"result": None, "error": error.model_dump() if error else None}
    kept = result.to_json()
    for name in ("series", "trace", "config"):
        del kept[name]
    kept["config"] = {"policy": result.config["policy"], "block_size": result.block_size}
    return {"result": kept, "error": None}


def _prefixes(q: Question, found: Found, watcher: Watcher) -> None:
    try:
        references = collect(q.stream)
    except NoHashIdsError:
        found.notes.append(message("sim.note.mixed_hash_blocks"))
        return
    pool = q.setup.budget.kv // (q.setup.slot_bytes * references.block_size)
    points = []
    for capacity in q.capacities or _capacities(references, pool):
        for eviction in EVICTIONS:
            what = message("progress.sim.prefixes", blocks=capacity)
            tick = watcher.begin(what, _replay_weight(q), requests=False)
            replay = replay_prefixes(references, eviction, capacity)
            tick(_replay_weight(q))
            points.append(
                {
                    "eviction": eviction,
                    "capacity": capacity,
                    "hit_share_blocks": replay.hit_share_blocks,
                    "hit_share_tokens": replay.hit_share_tokens,
                    "bound_share_blocks": replay.bound_share_blocks
                    if eviction == "optimal"
                    else None,
                    "orphaned": replay.orphaned,
                    "evicted": replay.evicted,
                }
            )
    found.prefixes = {
        "block_size": references.block_size,
        "requests": len(references.ends),
        "skipped": references.skipped,
        "blocks_asked": len(references.blocks),
        "distinct_blocks": references.distinct,
        "pool_blocks": pool,
        "points": points,
    }


def _capacities(references: References, pool: int) -> list[int]:
    """Cache sizes from all blocks of the trace downwards, and the size of the run's pool."""
    sizes = {references.distinct}
    size = references.distinct
    for _ in range(_CAPACITIES):
        size //= _CAPACITY_FACTOR
        sizes.add(size)
    sizes.add(min(pool, references.distinct))
    return sorted(each for each in sizes if each >= 1)
