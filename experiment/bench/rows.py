"""From the record of a round to rows: one for each arm, every figure out of the log.

Tokens are counted here, from the requests that the log says have ended. The seconds are the arm's
own clock, which leaves out the moments in which it stood still to be measured; it is believed only
where it lies between two times that the steps in the log give:

    steps    ├──────┤  ├──────┤   ├──────┤
    busy      ██████    ██████     ██████        at least the sum of the steps
    span     ├───────────────────────────┤       at most from the first to the last
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.analysis import ArmEvents, arm_result, split_by_arm, timeline
from experiment.bench.shares import Work, machine_shares
from experiment.events import (
    MachineLimits,
    ModelPrepared,
    RequestFinished,
    Step,
    StepProfile,
    WorkloadReady,
)
from experiment.messages import Message, message
from experiment.record import Record
from experiment.results import StepRow
from kvsim.step import plan_from_json

# Before the first step, and between the two clocks that each step reads, another program may hold
# the core for a moment.
_SLACK_S, _SLACK_PER_STEP_S = 0.2, 1e-3


class Row(BaseModel):
    """An arm in a round. Seconds, bytes and shares; None is unknown, and why stands beside it.

    ``useful_tokens`` are the generated ones that requests asked for; ``mean_running`` is the
    time-weighted mean of the requests computed in a step while others waited (None, with its
    reason, where nobody ever did), ``mean_running_all`` that of all steps. ``peak_kv_bytes`` are
    those of the tensors, ``peak_allocated_bytes`` what was handed to requests of them. Shares are
    of the machine's own limit, see :mod:`experiment.bench.shares`. ``decode_step_s`` is the median
    of the steps that decode alone with as many requests as ever ran in one. ``equal_requests``
    compares tokens with those of the round's first arm, ``tokens_sha256`` is of all of them.
    ``load_average`` is the system's of a minute when the arm began, our own arms before it
    included; ``others_cores`` what other programs kept busy while none of ours ran.
    """

    model_config = ConfigDict(frozen=True)

    workload: str
    arm: str
    round: int
    status: str
    reason: Message | None = None
    useful_tokens: int | None = None
    generate_s: float | None = None
    useful_tokens_per_s: float | None = None
    first_token_median_s: float | None = None
    first_token_max_s: float | None = None
    peak_kv_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    mean_running: float | None = None
    mean_running_reason: Message | None = None
    mean_running_all: float | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    prefill_share: float | None = None
    decode_share: float | None = None
    shares_reason: Message | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    decode_step_s: float | None = None
    decode_requests: int | None = None
    steps: int | None = None
    requests: int | None = None
    equal_requests: int | None = None
    tokens_sha256: str | None = None
    import_s: float | None = None
    load_s: float | None = None
    threads: int | None = None
    cpu_cores: float | None = None
    engine: dict[str, Any] | None = None
    problems: list[Message] = []
    load_average: float | None = None
    others_cores: float | None = None
    wall_s: float | None = None


class Profile(BaseModel):
    """Where a decode step of an arm went in a round; see :class:`experiment.events.StepProfile`."""

    model_config = ConfigDict(frozen=True)

    workload: str
    arm: str
    round: int
    steps: int
    requests: int
    step_ms: float
    matrix_ms: float | None
    attention_ms: float | None
    other_ms: float | None
    rest_ms: float | None
    trace: str | None


def profiles_of(record: Record, workload: str, number: int) -> list[Profile]:
    """A profile for each arm that was profiled."""
    return [
        Profile(
            workload=workload, round=number, **event.model_dump(exclude={"event", "t_ns"})
        )
        for event in record.of(StepProfile)
    ]  # fmt: skip


def rows_of(record: Record, workload: str, number: int) -> list[Row]:
    """A row for each arm that was started or skipped, in the order of the log."""
    rows = [_row(events, record, workload, number) for events in split_by_arm(record)]
    reference = next((row.arm for row in rows if row.status == "finished"), None)
    tokens = {events.arm: _tokens(events.requests) for events in split_by_arm(record)}
    return [
        row.model_copy(update={"equal_requests": _equal(tokens[row.arm], tokens[reference])})
        if reference and row.status == "finished"
        else row
        for row in rows
    ]


def _row(events: ArmEvents, record: Record, workload: str, number: int) -> Row:
    asked = record.first(WorkloadReady)
    assert asked is not None
    result = arm_result(events, asked)
    told: dict[str, Any] = {"workload": workload, "arm": events.arm, "round": number}
    if result.status != "finished":
        return Row(**told, status=result.status, reason=result.reason)
    steps, _ = timeline(events)
    tokens = useful_tokens(events.requests, asked)
    seconds, problem = believed_seconds(result.generate_s, events.steps)
    lacking = _lacking(events.requests, asked)
    problems = [*result.problems, *(each for each in (problem, lacking) if each)]
    rate = tokens / seconds if seconds and not lacking else None
    running, why = running_while_waiting(steps)
    peak = max((row.allocated for row in steps), default=None)
    return Row(
        **told,
        status="finished",
        useful_tokens=tokens,
        generate_s=seconds,
        useful_tokens_per_s=rate,
        **_first_tokens(events.requests),
        peak_kv_bytes=result.tensor_bytes,
        peak_allocated_bytes=None
        if peak is None or events.pool is None
        else round(peak * events.pool.bytes_per_slot),
        mean_running=running,
        mean_running_reason=why,
        mean_running_all=result.mean_running,
        preemptions=result.preemptions,
        recomputed_tokens=recomputed_tokens(events.steps),
        **_shares(events, record, asked),
        **_decode_step(events.steps),
        steps=result.steps,
        requests=len(events.requests),
        tokens_sha256=_digest(events.requests),
        import_s=result.import_s,
        load_s=result.load_s,
        threads=result.threads,
        cpu_cores=result.watch.cpu_cores,
        engine=_engine(events),
        problems=problems,
    )


def useful_tokens(requests: Sequence[RequestFinished], asked: WorkloadReady) -> int:
    """Generated tokens that somebody asked for: no more than the request's own limit."""
    most = {request.id: request.max_new_tokens for request in asked.requests}
    return sum(min(len(ended.tokens), most.get(ended.request, 0)) for ended in requests)


def believed_seconds(
    claimed: float | None, steps: Sequence[Step]
) -> tuple[float | None, Message | None]:
    """The arm's seconds if the steps in the log bear them out; else None and the problem."""
    computed = [step for step in steps if step.plan.get("chunks")]
    if claimed is None or not computed:
        return None, message("bench.problem.no_steps")
    busy = sum(step.t_ns - step.started_ns for step in computed) / 1e9
    span = (computed[-1].t_ns - computed[0].started_ns) / 1e9
    slack = _SLACK_S + _SLACK_PER_STEP_S * len(computed)
    if busy - slack <= claimed <= span + slack:
        return claimed, None
    return None, message("bench.problem.clock", claimed=claimed, busy=busy, span=span)


def running_while_waiting(rows: Sequence[StepRow]) -> tuple[float | None, Message | None]:
    """Time-weighted mean of requests in a step, over the steps that left others waiting."""
    some = [(r.running, r.t_ns - r.started_ns) for r in rows if r.running and r.waiting]
    total = sum(time for _, time in some)
    if not total:
        return None, message("bench.nobody_waited")
    return sum(count * time for count, time in some) / total, None


def recomputed_tokens(steps: Sequence[Step]) -> int:
    """Positions that were computed more than once; rows that have ended are not looked at."""
    computed: dict[int, int] = {}
    ended: set[int] = set()
    again = 0
    for step in steps:
        plan = plan_from_json(step.plan)
        ended.update(finish.request for finish in plan.finished)
        for chunk in plan.chunks:
            if chunk.request in ended:
                continue
            before, end = computed.get(chunk.request, 0), chunk.start + chunk.count
            again += max(0, min(end, before) - chunk.start)
            computed[chunk.request] = max(before, end)
    return again


def _lacking(requests: Sequence[RequestFinished], asked: WorkloadReady) -> Message | None:
    """A rate of less work than was asked for would compare with nothing."""
    made = {ended.request: len(ended.tokens) for ended in requests}
    short = sum(made.get(r.id, 0) < r.max_new_tokens for r in asked.requests)
    return message("bench.problem.lacking", n=short) if short else None


def _first_tokens(requests: Sequence[RequestFinished]) -> dict[str, float | None]:
    times = [r.first_token_s for r in requests if r.first_token_s is not None]
    return {
        "first_token_median_s": median(times) if times else None,
        "first_token_max_s": max(times, default=None),
    }


def _shares(events: ArmEvents, record: Record, asked: WorkloadReady) -> dict[str, Any]:
    limits, model = record.first(MachineLimits), record.first(ModelPrepared)
    if limits is None or model is None:
        return {"shares_reason": message("bench.no_limits")}
    prompts = {request.id: len(request.token_ids) for request in asked.requests}
    prefill, decode = machine_shares(events.steps, model, limits, prompts)
    none = message("bench.no_such_step") if not (prefill.steps and decode.steps) else None
    return {
        "prefill_share": prefill.share, "decode_share": decode.share, "shares_reason": none,
        "prefill_s": _seconds(prefill), "decode_s": _seconds(decode),
    }  # fmt: skip


def _seconds(work: Work) -> float | None:
    return work.seconds if work.steps else None


def _decode_step(steps: Sequence[Step]) -> dict[str, Any]:
    """Steps in which as many requests as ever decode, and nothing else is computed."""
    times: dict[int, list[float]] = {}
    for step in steps:
        plan = plan_from_json(step.plan)
        if plan.chunks and all(chunk.count == 1 and chunk.samples for chunk in plan.chunks):
            seconds = (step.t_ns - step.started_ns) / 1e9
            times.setdefault(len(plan.chunks), []).append(seconds)
    if not times:
        return {}
    most = max(times)
    return {"decode_step_s": median(times[most]), "decode_requests": most}


def _engine(events: ArmEvents) -> dict[str, Any] | None:
    """What an engine that is not ours ran as."""
    if events.engine is None:
        return None
    eager = bool(events.engine.arguments.get("enforce_eager"))
    told = events.engine
    return {"versions": told.versions, "eager": eager, "variables": told.variables}


def _tokens(requests: Sequence[RequestFinished]) -> dict[int, list[int]]:
    return {ended.request: ended.tokens for ended in requests}


def _equal(ours: dict[int, list[int]], theirs: dict[int, list[int]]) -> int:
    return sum(ours[request] == tokens for request, tokens in theirs.items() if request in ours)


def _digest(requests: Sequence[RequestFinished]) -> str:
    return hashlib.sha256(json.dumps(sorted(_tokens(requests).items())).encode()).hexdigest()
