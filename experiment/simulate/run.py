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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from experiment.analysis.preemption import PreemptionCounts, describe_preemptions
from experiment.record.simulation import SCHEMA_VERSION
from experiment.simulate.names import gpu_of, model_of
from experiment.simulate.policies import policies_of
from experiment.simulate.setup import (
    Limits,
    Memory,
    Setup,
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
# Shows the beginning of a part, with its weight, in requests unless ``requests`` is False; the
# result is called with the completed amount.
Begin = Callable[..., Tick]
# Results so far, as plain values of ``sim.json``.
Found = dict[str, Any]
# Ratio of consecutive cache sizes in the default sweep over capacities.
_CAPACITY_FACTOR = 4
_CAPACITIES = 6
_REPLAYS_OF_ONE = 16
# Longer traces are not searched for remedies, which takes some twenty simulations.
_REMEDIES_UP_TO = 2_000
PREEMPTIONS: tuple[PreemptionKind, ...] = get_args(PreemptionKind)


def _silent(*_: object) -> Tick:
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


def nothing() -> Found:
    """Results before the first simulation."""
    lists = ("cells", "block_sizes", "budgets", "preemption", "samples", "preempting", "notes")
    return {**{name: [] for name in lists}, "prefixes": None, "interrupted": False}


def failures(found: Found) -> list[Message]:
    """Reasons of cells without a result."""
    return [Message.model_validate(cell["error"]) for cell in found["cells"] if cell["error"]]


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
        raise user_error("error.either_flag", flag="--samples", other="--beams")
    if branching is not None and beams == 1:
        raise user_error("error.needs_flag", flag="--branching", other="--beams")
    if beams > limits.max_num_seqs:
        params = {"config_key": "--beams", "value": beams, "limit": limits.max_num_seqs}
        raise user_error("error.limit_le", **params)
    named, device = model_of(model, memory.weights), gpu_of(gpu)
    setup = make_setup(
        named, device, memory, max_length=max_length, block_size=block_size, latency=latency,
        limits=limits, samples=samples, beams=beams,
        branching=0.5 if branching is None else branching, seed=seed,
    )  # fmt: skip
    if any(cache.kind == "state" for cache in setup.caches):  # its blocks cannot be simulated yet
        raise user_error("error.sim.states", model=named.name)
    block, room = setup.block_size * setup.slot_bytes, limits.swap_bytes
    if limits.preemption == "swap" and room < block:  # it would always recompute
        raise user_error("error.sim.swap_small", size=room, block=block)
    chosen: Sequence[PolicyName] = policies_of(policies)
    if policies is None and (beams > 1 or (samples or 1) > 1):
        chosen = [policy for policy in chosen if policy not in CONTIGUOUS]
    for budget in budgets:
        replace(memory, budget=budget).kv(named, device)
    stream = load(replace(trace, max_length=length_limit(named, max_length)))
    if max_length is None:
        setup = setup.of_longest(stream.facts.longest)
    return Question(stream, setup, chosen, block_sizes, budgets, sample_counts, capacities)


def simulate_trace(question: Question) -> dict[str, Any]:
    """Simulate every policy; return the content of ``sim.json``.

    Raises:
        UserError: no policy can be simulated.
    """
    found = nothing()
    run(question, _silent, found)
    return recorded(start(question), found)


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
    if any(cell["result"] for cell in found["cells"]):
        return head | found
    if found["interrupted"]:
        raise KeyboardInterrupt
    raise UserError(failures(found)[0])


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


def run(question: Question, begin: Begin, found: Found) -> None:
    """Run everything; an interruption keeps the results so far in ``found``."""
    setup = question.setup
    spans = [cache.span for cache in setup.caches if 0 < cache.span < setup.max_length]
    if spans:
        _note(found, "windows", layers=len(spans), span=min(spans))
    if "paged+prefix" in question.policies and not question.stream.facts.hash_ids:
        _note(found, "no_prefixes")
    try:
        _cells(question, found, begin)
        if any(cell["result"] for cell in found["cells"]):
            _sweeps(question, found, begin)
            _preemption(question, found, begin)
            _remedies(question, found, begin)
            if question.stream.facts.hash_ids:
                _prefixes(question, found, begin)
            elif question.capacities:
                _note(found, "no_hash_ids")
    except KeyboardInterrupt:
        found["interrupted"] = True


def _note(found: Found, key: str, **params: Any) -> None:
    found["notes"].append(message(f"sim.note.{key}", **params).model_dump())


def _cells(q: Question, found: Found, begin: Begin) -> None:
    """Simulate every policy.

    Names those under which batches are far from those that the latency was fitted to.
    """
    latency = q.setup.latency
    for policy in q.policies:
        result = _one(q, q.setup, policy, begin, message("progress.sim.cell", policy=policy))
        cell: dict[str, Any] = {"policy": policy, "result": None, "error": None, "speed": None}
        found["cells"].append(cell)
        if isinstance(result, Message):
            cell["error"] = result.model_dump()
            continue
        cell["result"] = result.to_json()
        cell["speed"] = {
            "seconds": result.speed.seconds,
            "requests_per_second": result.speed.requests_per_second,
        }
        running = cell["result"]["running"]["busy_mean"]
        if not isinstance(latency, BatchLatency) or running is None:
            continue
        if latency.is_extrapolated(running):
            least, most = map(round, latency.seen())
            params = {"policy": policy, "running": round(running), "least": least, "most": most}
            _note(found, "latency_range", **params)


def _sweeps(q: Question, found: Found, begin: Begin) -> None:
    """Add a point for each policy and other setup, with the value under its name.

    Samples are simulated with the first paged policy; all paged policies share alike.
    """
    setup = q.setup
    for sweep, name, policies, setups in (
        ("block_sizes", "block_size", q.paged,
         {size: replace(setup, block_size=size) for size in q.block_sizes}),
        ("budgets", "budget_bytes", q.policies, {b: setup.with_budget(b) for b in q.budgets}),
        ("samples", "samples", q.paged[:1],
         {count: replace(setup, samples=count, beams=1) for count in q.samples}),
    ):  # fmt: skip
        if setups and not policies:
            _note(found, "no_paged")
        for value, other in setups.items():
            for policy in policies:
                what = message(f"progress.sim.{name}", policy=policy, value=value)
                point = _point(_one(q, other, policy, begin, what))
                found[sweep].append({"policy": policy, name: value, **point})


def _preemption(q: Question, found: Found, begin: Begin) -> None:
    """Simulate preemption with the first paged policy; all paged policies preempt alike."""
    for size in q.block_sizes if q.paged else ():
        point: dict[str, Any] = {"policy": q.paged[0], "block_size": size, "error": None}
        for kind in PREEMPTIONS:
            setup = replace(q.setup, block_size=size).preempting(kind)
            way = message(f"sim.preemption.{kind}").model_dump()
            what = message("progress.sim.preemption", policy=q.paged[0], size=size, kind=way)
            result = _one(q, setup, q.paged[0], begin, what)
            if isinstance(result, Message):
                point["error"] = result.model_dump()
                continue
            point[f"{kind}_preemptions"] = result.preemptions.total
            point[f"{kind}_s"] = (
                recompute_cost(result, setup.latency)
                if kind == "recompute"
                else swap_cost(result, setup.config(q.paged[0]))
            )
        found["preemption"].append(point)


def _remedies(q: Question, found: Found, begin: Begin) -> None:
    """Why paged policies preempt, and what would prevent it."""
    many = q.stream.facts.requests > _REMEDIES_UP_TO
    for cell in found["cells"]:
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
            begin(message("progress.sim.remedies", policy=policy), 0)
            free = q.setup.budget.memory - q.setup.model.weight_bytes(q.setup.dtype)
            most = free // config.shape.block_bytes
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
        found["preempting"].append({"policy": policy, "why": why.model_dump(mode="json")})
    if found["preempting"] and many:
        _note(found, "no_remedies", limit=_REMEDIES_UP_TO)


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
    q: Question, setup: Setup, policy: PolicyName, begin: Begin, what: Message
) -> SimResult | Message:
    """Run one simulation; return its result, or why there is none."""
    ended = begin(what, q.stream.facts.requests)
    try:
        return simulate(q.stream, setup.config(policy), ended=ended)
    except SimulationError as error:
        return simulation_message(error)


def _point(result: SimResult | Message) -> dict[str, Any]:
    """The values of a simulation that a sweep records."""
    if isinstance(result, Message):
        return {"result": None, "error": result.model_dump()}
    kept = result.to_json()
    kept = {name: kept[name] for name in kept if name not in ("series", "trace")}
    kept["config"] = {"policy": result.config["policy"], "block_size": result.block_size}
    return {"result": kept, "error": None}


def _prefixes(q: Question, found: Found, begin: Begin) -> None:
    try:
        references = collect(q.stream)
    except NoHashIdsError:
        _note(found, "mixed_hash_blocks")
        return
    pool = q.setup.budget.kv // (q.setup.slot_bytes * references.block_size)
    points = []
    for capacity in q.capacities or _capacities(references, pool):
        for eviction in EVICTIONS:
            what = message("progress.sim.prefixes", blocks=capacity)
            tick = begin(what, _replay_weight(q), requests=False)
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
    found["prefixes"] = {
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
    most = references.distinct
    sizes = {most // _CAPACITY_FACTOR**power for power in range(_CAPACITIES + 1)}
    return sorted(size for size in {*sizes, min(pool, most)} if size >= 1)
