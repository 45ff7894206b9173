"""The simulator beside the engines of a run: the same requests, the same pool, planned anew.

    arm              asked                                  verdict
    slabs, paged     is every plan the one that ran?        equal plans of all plans
    vllm             how many blocks are in use, by step?   points of usable blocks, mean and worst

The engine of ours is built on the simulator's own scheduler, so nothing but equality will do; of
another engine only how far it stays away can be told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from experiment.analysis.results import SimulatorCheck
from experiment.config.schema import Config, EngineConfig
from experiment.events import EngineReported, PoolReserved, WorkloadReady, WorkloadRequest
from experiment.text.messages import Message, message
from kvsim.accounting.ledger import ReplayError
from kvsim.accounting.slots import PoolShape
from kvsim.core.blocks import PoolError
from kvsim.core.limits import RequestRefusedError, SchedulerConfig
from kvsim.core.prefix import KeyChain
from kvsim.core.request import Keys
from kvsim.core.step import StepPlan
from kvsim.sim.occupancy import Occupancy, occupancy
from kvsim.sim.replay import RecordedRequest, ReplayResult, replay_run

# Mean difference of blocks in use, in percentage points of usable blocks, that is still agreement.
ALLOWED_POINTS = 0.1
OURS = ("slabs", "paged")
CHECKED = (*OURS, "vllm")
_CURVE_POINTS = 240
_FAILURES = (ReplayError, PoolError, RequestRefusedError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class RecordedArm:
    """What a log holds of an arm that planned in steps.

    Attributes:
        config: of the whole run, as it was recorded.
        plans: all of them.
        held: blocks that requests held after each, up to the first that contradicts those before.
        tokens: that each request generated, by request id.
        arrivals: of requests that came later, the first step that could know of them.
    """

    arm: str
    config: Mapping[str, Any]
    workload: WorkloadReady
    pool: PoolReserved
    shape: PoolShape
    plans: Sequence[StepPlan]
    held: Sequence[int]
    tokens: Mapping[int, Sequence[int]]
    arrivals: Mapping[int, int]
    engine: EngineReported | None


def check_simulator(recorded: RecordedArm) -> SimulatorCheck:
    """Plan an arm's requests anew and say how far that is from what the arm did."""
    engine = engine_config(recorded)
    if engine is None:
        return _unknown(recorded, message("simulator.other_version"))
    missing = sum(not recorded.tokens.get(one.id) for one in recorded.workload.requests)
    if missing:
        return _unknown(recorded, message("simulator.unfinished", n=missing))
    try:
        if recorded.arm in OURS:
            return _block_for_block(recorded, engine)
        return _by_step(recorded, engine)
    except _FAILURES as error:
        return _unknown(recorded, message("simulator.failed", error=str(error)))


def engine_config(recorded: RecordedArm) -> EngineConfig | None:
    """The limits of our engine in the run; None: another version recorded the config."""
    # Logs from before there was a choice are of first_chunk.
    given = dict(recorded.config)
    given["engine"] = {"admission": "first_chunk", **given.get("engine", {})}
    try:
        return Config.model_validate(given).engine
    except ValidationError:
        return None


def scheduling_of(recorded: RecordedArm, engine: EngineConfig) -> SchedulerConfig:
    """Limits that the arm's scheduler had, as far as kvsim's has them too."""
    if recorded.arm not in OURS:
        return _vllm_scheduling(recorded, engine)
    return SchedulerConfig(
        **engine.scheduling(),
        watermark_blocks=recorded.pool.watermark_blocks,
        host_blocks=engine.swap_space // recorded.pool.block_bytes,
    )


def requests_of(recorded: RecordedArm) -> list[RecordedRequest]:
    """Requests that ask for as many tokens as they got: no scheduler can know when they stop."""
    return [
        RecordedRequest(
            one.id,
            len(one.token_ids),
            len(recorded.tokens[one.id]),
            arrival_step=recorded.arrivals.get(one.id, 0),
            priority=one.priority,
            keys=_keys(recorded, one),
        )
        for one in recorded.workload.requests
    ]


def _unknown(recorded: RecordedArm, reason: Message) -> SimulatorCheck:
    return SimulatorCheck(agrees=None, text=reason, steps=len(recorded.plans))


def _block_for_block(recorded: RecordedArm, engine: EngineConfig) -> SimulatorCheck:
    """Stops and forks are taken from the record, everything else is decided anew."""
    pool, requests = recorded.pool, recorded.workload.requests
    limits = scheduling_of(recorded, engine)
    asked = [
        RecordedRequest(
            one.id,
            len(one.token_ids),
            one.max_new_tokens,
            arrival_step=recorded.arrivals.get(one.id, 0),
            priority=one.priority,
            beams=recorded.workload.sampling.beam_width,
            keys=_keys(recorded, one),
        )
        for one in requests
        if one.sample_of is None
    ]
    children = {one.id: _keys(recorded, one) for one in requests if one.sample_of is not None}
    found = replay_run(
        recorded.plans, asked, pool.blocks, pool.block_size, limits, child_keys=children
    )
    return SimulatorCheck(
        agrees=found.difference is None,
        text=_exact_text(found, recorded.plans),
        steps=len(recorded.plans),
        equal_steps=found.equal,
    )


def _exact_text(found: ReplayResult, plans: Sequence[StepPlan]) -> Message:
    """A plan without chunks, the last one for instance, is no step: it reports who has ended."""
    other, n = found.difference, len(plans)
    if other is None:
        return message("simulator.same", n=n, steps=sum(bool(plan.chunks) for plan in plans))
    part = message(f"simulator.part_{other.part}").model_dump()
    return message("simulator.other", equal=found.equal, n=n, step=other.step, part=part)


def _by_step(recorded: RecordedArm, engine: EngineConfig) -> SimulatorCheck:
    limits, asked = scheduling_of(recorded, engine), requests_of(recorded)
    if len(recorded.held) < len(recorded.plans):
        raise ReplayError(f"step {len(recorded.held)} contradicts those before it")
    shape = recorded.shape
    preempted = sum(len(plan.preempted) for plan in recorded.plans)
    found = occupancy(recorded.held, preempted, asked, shape, shape.engine_blocks, limits)
    return _measured(found, len(recorded.plans))


def _measured(found: Occupancy, steps: int) -> SimulatorCheck:
    worst = found.worst_step
    if worst is None:
        return SimulatorCheck(agrees=None, text=message("simulator.no_steps"), steps=steps)
    agrees = found.mean_points <= ALLOWED_POINTS
    most = abs(found.points[worst])
    figures = {"mean": found.mean_points, "most": most, "step": worst, "blocks": found.usable}
    text = message(
        "simulator.within" if agrees else "simulator.beyond",
        n=len(found.points), recorded=found.preempted[0], simulated=found.preempted[1],
        allowed=ALLOWED_POINTS, **figures,
    )  # fmt: skip
    return SimulatorCheck(
        agrees=agrees,
        text=text,
        steps=steps,
        simulated_steps=len(found.simulated),
        usable_blocks=found.usable,
        mean_points=found.mean_points,
        most_points=most,
        worst_step=worst,
        preempted=found.preempted,
        curve=_curve(found, worst),
    )


def _curve(found: Occupancy, worst: int) -> list[tuple[int, int, int]]:
    """Some of the steps, evenly spread, the one where both are farthest apart among them."""
    count = len(found.points)
    each = -(-count // _CURVE_POINTS)

    def at(values: Sequence[int], step: int) -> int:
        return values[step] if step < len(values) else 0

    steps = sorted({*range(0, count, each), worst, count - 1})
    return [(step, at(found.recorded, step), at(found.simulated, step)) for step in steps]


def _vllm_scheduling(recorded: RecordedArm, engine: EngineConfig) -> SchedulerConfig:
    """The limits that vLLM was started with, or ours where nothing was said; its own defaults."""
    ours, told = engine.scheduling(), recorded.engine.arguments if recorded.engine else {}
    version = recorded.engine.versions.get("vllm", "") if recorded.engine else ""
    limits = {name: told[name] for name in ours if isinstance(told.get(name), int)}
    both = {name: ours[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    return SchedulerConfig(
        **{**both, **limits},
        policy=told.get("scheduling_policy", engine.policy),
        prefix_caching=told.get("enable_prefix_caching", engine.prefix_caching),
        admission="full" if told.get("scheduler_reserve_full_isl", True) else "first_chunk",
        scheduler="vllm-0.32" if _minor(version) < 33 else "vllm-0.33",
        watermark_blocks=recorded.pool.watermark_blocks,
    )


def _minor(version: str) -> int:
    """33 of 0.33.1; of later or unknown versions the last one that differs."""
    found = re.match(r"0\.(\d+)", version)
    return int(found[1]) if found else 33


def _keys(recorded: RecordedArm, request: WorkloadRequest) -> Keys:
    """Keys of its blocks, of prompt and generated tokens."""
    chain = KeyChain(recorded.pool.block_size)
    whole = [*request.token_ids, *recorded.tokens[request.id]]
    return lambda count: chain.keys(whole, count)
