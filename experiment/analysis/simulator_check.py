"""Compare the engines of a run with the simulator on the same requests and pool.

    arm              compared                        verdict
    slabs, paged     every plan                      equal plans of all plans
    vllm             allocated blocks of each step   points of usable blocks, mean and worst

Our engine uses the simulator's scheduler, so plans must be equal. For another engine the difference
is measured.
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

# Tolerated mean difference of allocated blocks, in percentage points of usable blocks.
ALLOWED_POINTS = 0.1
OURS = ("slabs", "paged")
CHECKED = (*OURS, "vllm")
_CURVE_POINTS = 240
_FAILURES = (ReplayError, PoolError, RequestRefusedError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class RecordedArm:
    """Recorded plans and requests of an arm.

    Attributes:
        config: of the whole run, as recorded.
        plans: of all steps.
        held: blocks allocated to requests after each step, up to the first contradiction.
        tokens: generated tokens by request id.
        arrivals: first step of requests that arrived later, by request id.
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
    """Simulate an arm's requests, and measure the difference from the recorded steps."""
    engine = engine_config(recorded)
    if engine is None:
        return _unknown(recorded, message("simulator.other_version"))
    missing = sum(not recorded.tokens.get(one.id) for one in recorded.workload.requests)
    if missing:
        return _unknown(recorded, message("simulator.unfinished", n=missing))
    try:
        if recorded.arm in OURS:
            return _compare_plans(recorded, engine)
        return _compare_occupancy(recorded, engine)
    except _FAILURES as error:
        return _unknown(recorded, message("simulator.failed", error=str(error)))


def engine_config(recorded: RecordedArm) -> EngineConfig | None:
    """Limits of our engine in the run; None: another version recorded the config."""
    # Older logs do not record the admission, which was first_chunk.
    config = dict(recorded.config)
    config["engine"] = {"admission": "first_chunk", **config.get("engine", {})}
    try:
        return Config.model_validate(config).engine
    except ValidationError:
        return None


def scheduling_of(recorded: RecordedArm, engine: EngineConfig) -> SchedulerConfig:
    """Limits of the arm's scheduler that kvsim's scheduler supports."""
    if recorded.arm not in OURS:
        return _vllm_scheduling(recorded, engine)
    return SchedulerConfig(
        **engine.scheduling(),
        watermark_blocks=recorded.pool.watermark_blocks,
        host_blocks=engine.swap_space // recorded.pool.block_bytes,
    )


def requests_of(recorded: RecordedArm) -> list[RecordedRequest]:
    """Requests with their recorded number of tokens, because stops cannot be simulated."""
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


def _compare_plans(recorded: RecordedArm, engine: EngineConfig) -> SimulatorCheck:
    """Replay the plans with recorded stops and forks, and simulate all other decisions."""
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
    result = replay_run(
        recorded.plans, asked, pool.blocks, pool.block_size, limits, child_keys=children
    )
    return SimulatorCheck(
        agrees=result.difference is None,
        text=_exact_text(result, recorded.plans),
        steps=len(recorded.plans),
        equal_steps=result.equal,
    )


def _exact_text(result: ReplayResult, plans: Sequence[StepPlan]) -> Message:
    """Describe a replay; a plan without chunks is not counted as a step."""
    other, n = result.difference, len(plans)
    if other is None:
        return message("simulator.same", n=n, steps=sum(bool(plan.chunks) for plan in plans))
    part = message(f"simulator.part_{other.part}").model_dump()
    return message("simulator.other", equal=result.equal, n=n, step=other.step, part=part)


def _compare_occupancy(recorded: RecordedArm, engine: EngineConfig) -> SimulatorCheck:
    limits, asked = scheduling_of(recorded, engine), requests_of(recorded)
    if len(recorded.held) < len(recorded.plans):
        raise ReplayError(f"step {len(recorded.held)} contradicts those before it")
    shape = recorded.shape
    preempted = sum(len(plan.preempted) for plan in recorded.plans)
    result = occupancy(recorded.held, preempted, asked, shape, shape.engine_blocks, limits)
    return _occupancy_result(result, len(recorded.plans))


def _occupancy_result(result: Occupancy, steps: int) -> SimulatorCheck:
    worst = result.worst_step
    if worst is None:
        return SimulatorCheck(agrees=None, text=message("simulator.no_steps"), steps=steps)
    agrees = result.mean_points <= ALLOWED_POINTS
    most = abs(result.points[worst])
    figures = {"mean": result.mean_points, "most": most, "step": worst, "blocks": result.usable}
    allowed = message(f"simulator.{'within' if agrees else 'beyond'}", allowed=ALLOWED_POINTS)
    text = message(
        "simulator.blocks",
        n=len(result.points), recorded=result.preempted[0], simulated=result.preempted[1],
        allowed=allowed.model_dump(), **figures,
    )  # fmt: skip
    return SimulatorCheck(
        agrees=agrees,
        text=text,
        steps=steps,
        simulated_steps=len(result.simulated),
        usable_blocks=result.usable,
        mean_points=result.mean_points,
        most_points=most,
        worst_step=worst,
        preempted=result.preempted,
        curve=_curve(result, worst),
    )


def _curve(result: Occupancy, worst: int) -> list[tuple[int, int, int]]:
    """Evenly spaced steps, including the one with the largest difference."""
    count = len(result.points)
    each = -(-count // _CURVE_POINTS)

    def at(values: Sequence[int], step: int) -> int:
        return values[step] if step < len(values) else 0

    steps = sorted({*range(0, count, each), worst, count - 1})
    return [(step, at(result.recorded, step), at(result.simulated, step)) for step in steps]


def _vllm_scheduling(recorded: RecordedArm, engine: EngineConfig) -> SchedulerConfig:
    """Recorded limits of vLLM, else ours; other settings default to vLLM's."""
    ours, arguments = engine.scheduling(), recorded.engine.arguments if recorded.engine else {}
    version = recorded.engine.versions.get("vllm", "") if recorded.engine else ""
    limits = {name: arguments[name] for name in ours if isinstance(arguments.get(name), int)}
    both = {name: ours[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    return SchedulerConfig(
        **{**both, **limits},
        policy=arguments.get("scheduling_policy", engine.policy),
        prefix_caching=arguments.get("enable_prefix_caching", engine.prefix_caching),
        admission="full" if arguments.get("scheduler_reserve_full_isl", True) else "first_chunk",
        scheduler="vllm-0.32" if _minor(version) < 33 else "vllm-0.33",
        watermark_blocks=recorded.pool.watermark_blocks,
    )


def _minor(version: str) -> int:
    """33 for 0.33.1, and for later or unknown versions."""
    match = re.match(r"0\.(\d+)", version)
    return int(match[1]) if match else 33


def _keys(recorded: RecordedArm, request: WorkloadRequest) -> Keys:
    """Keys of a request's blocks, from prompt and generated tokens."""
    chain = KeyChain(recorded.pool.block_size)
    whole = [*request.token_ids, *recorded.tokens[request.id]]
    return lambda count: chain.keys(whole, count)
