"""Compute the rows of a round, one per arm, from its record.

Tokens are counted from the finished requests of the log; :mod:`experiment.bench.figures` computes
single figures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.analysis.arm_results import arm_result
from experiment.bench.figures import (
    checked_seconds,
    decode_step,
    first_tokens,
    missing_tokens,
    recomputed_tokens,
    running_while_waiting,
    useful_tokens,
)
from experiment.bench.shares import Work, fastest, machine_shares
from experiment.events import (
    EnvironmentProbed,
    KernelChosen,
    MachineLimits,
    ModelPrepared,
    RequestFinished,
    WorkloadReady,
)
from experiment.machine.environment import Environment
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, split_by_arm
from experiment.replay.timeline import timeline
from experiment.text.messages import Message, message

# The first of these that finished in the round is the reference of token comparisons.
REFERENCES = (
    "contiguous.sequential",
    "contiguous.batch",
    "contiguous.growing",
    "contiguous.compiled",
    "transformers_paged",
    "vllm",
    "slabs",
    "paged",
)


class Row(BaseModel):
    """An arm in a round. Seconds, bytes and shares; None: unknown, with the reason in ``*_reason``.

    Attributes:
        useful_tokens: generated tokens, up to the limit of each request.
        mean_running: time-weighted mean of running requests while others waited; None if none did.
        mean_running_all: the same over all steps.
        peak_kv_bytes: of the tensors.
        peak_allocated_bytes: allocated to requests.
        process_peak_bytes: after the cache was created; ``loading_peak_bytes`` until then.
        prefill_share, decode_share: of the machine's limit, see :mod:`experiment.bench.shares`.
        decode_step_s: median of pure decode steps with the maximum number of requests.
        requests: number of requests of the workload.
        reference: arm of the same round whose tokens are compared; None if none finished.
        equal_requests: requests with the same tokens as in ``reference``.
        equal_first_tokens: requests with the same first token; None in older files.
        tokens_sha256: of all tokens.
        packing: see :class:`experiment.events.WeightsPacked`; ``pack_s`` are its seconds.
        profile_run_s: see :class:`experiment.events.ProfileRun`.
        kernel: attention kernel of an arm of our engine.
        variables, cores: see :class:`experiment.events.ArmStarted`.
        load_average: of the system over one minute when the arm began, earlier arms included.
        others_cores: background load before the arm began, in cores.
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
    process_peak_bytes: int | None = None
    loading_peak_bytes: int | None = None
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
    reference: str | None = None
    equal_requests: int | None = None
    equal_first_tokens: int | None = None
    tokens_sha256: str | None = None
    import_s: float | None = None
    load_s: float | None = None
    pack_s: float | None = None
    profile_run_s: float | None = None
    packing: dict[str, Any] | None = None
    dtype: str | None = None
    kernel: str | None = None
    variables: dict[str, str] | None = None
    cores: list[int] | None = None
    threads: int | None = None
    cpu_cores: float | None = None
    engine: dict[str, Any] | None = None
    problems: list[Message] = []
    load_average: float | None = None
    others_cores: float | None = None
    wall_s: float | None = None


def rows_of(record: Record, workload: str, number: int) -> list[Row]:
    """Rows of all started or skipped arms, in the order of the log."""
    arms = split_by_arm(record)
    rows = [_row(events, record, workload, number) for events in arms]
    reference = reference_of(rows)
    if reference is None:
        return rows
    tokens = {events.arm: _tokens(events.requests) for events in arms}
    firsts = {
        arm: {request: made[:1] for request, made in ended.items() if made}
        for arm, ended in tokens.items()
    }
    return [
        row.model_copy(
            update={
                "reference": reference,
                "equal_requests": _equal(tokens[row.arm], tokens[reference]),
                "equal_first_tokens": _equal(firsts[row.arm], firsts[reference]),
            }
        )
        if row.status == "finished"
        else row
        for row in rows
    ]


def reference_of(rows: Sequence[Row]) -> str | None:
    """Reference arm of token comparisons; None if no arm finished."""
    done = [row.arm for row in rows if row.status == "finished"]
    return next((arm for arm in (*REFERENCES, *done) if arm in done), None)


def _row(events: ArmEvents, record: Record, workload: str, number: int) -> Row:
    asked = record.first(WorkloadReady)
    assert asked is not None
    probed = record.first(EnvironmentProbed)
    machine = Environment.model_validate(probed.environment) if probed else None
    result = arm_result(events, asked, machine)
    facts = _started(events) | {
        "workload": workload, "arm": events.arm, "round": number, "requests": len(asked.requests),
        **_ran_on(events.arm, record),
    }  # fmt: skip
    if result.status != "finished":
        return Row(**facts, status=result.status, reason=result.reason)
    steps, _ = timeline(events)
    tokens, made = useful_tokens(events.requests, asked), sorted(_tokens(events.requests).items())
    seconds, problem = checked_seconds(result.generate_s, events.steps)
    short = missing_tokens(events.requests, asked)
    problems = [*result.problems, *(each for each in (problem, short) if each)]
    running, why = running_while_waiting(steps)
    return Row(
        **facts,
        status="finished",
        useful_tokens=tokens,
        generate_s=seconds,
        useful_tokens_per_s=tokens / seconds if seconds and not short else None,
        **first_tokens(events.requests),
        peak_kv_bytes=result.tensor_bytes,
        peak_allocated_bytes=result.bytes_of(max((r.allocated for r in steps), default=None)),
        process_peak_bytes=result.process_peak,
        loading_peak_bytes=result.process_peak_loading,
        mean_running=running,
        mean_running_reason=why,
        mean_running_all=result.mean_running,
        preemptions=result.preemptions,
        recomputed_tokens=recomputed_tokens(events.steps),
        **_shares(events, record, asked),
        **decode_step(events.steps),
        steps=result.steps,
        tokens_sha256=hashlib.sha256(json.dumps(made).encode()).hexdigest(),
        import_s=result.import_s,
        load_s=result.load_s,
        threads=result.threads,
        cpu_cores=result.watch.cpu_cores,
        engine=_engine(events),
        problems=problems,
    )


def _ran_on(arm: str, record: Record) -> dict[str, str | None]:
    """The model's dtype and the kernel of our engine."""
    model = record.first(ModelPrepared)
    kernels = (chosen.kernel for chosen in record.of(KernelChosen) if chosen.arm == arm)
    return {"dtype": model.dtype if model else None, "kernel": next(kernels, None)}


def _started(events: ArmEvents) -> dict[str, Any]:
    """Environment variables, cores, packing and profile run of the arm's process."""
    facts: dict[str, Any] = {}
    if events.started is not None:
        variables, cores = events.started.variables, events.started.cores
        if variables is not None and events.engine is not None:
            # An engine may set variables itself.
            variables = variables | events.engine.variables
        facts = {"variables": variables, "cores": cores}
    if events.packed is not None:
        packing = events.packed.model_dump(mode="json", exclude={"event", "arm", "t_ns"})
        facts |= {"pack_s": events.packed.seconds, "packing": packing}
    if events.profile_run is not None:
        facts["profile_run_s"] = events.profile_run.seconds
    return facts


def _shares(events: ArmEvents, record: Record, asked: WorkloadReady) -> dict[str, Any]:
    limits, model = fastest(record.of(MachineLimits)), record.first(ModelPrepared)
    if limits is None or model is None:
        return {"shares_reason": message("bench.no_limits")}
    prompts = {request.id: len(request.token_ids) for request in asked.requests}
    prefill, decode = machine_shares(events.steps, model, limits, prompts)
    none = message("bench.no_such_step") if not (prefill.steps and decode.steps) else None
    return {
        "prefill_share": prefill.share, "decode_share": decode.share,
        "shares_reason": none,
        "prefill_s": _seconds(prefill), "decode_s": _seconds(decode),
    }  # fmt: skip


def _seconds(work: Work) -> float | None:
    return work.seconds if work.steps else None


def _engine(events: ArmEvents) -> dict[str, Any] | None:
    """Versions and mode of an external engine."""
    engine = events.engine
    if engine is None:
        return None
    eager = bool(engine.arguments.get("enforce_eager"))
    return {"versions": engine.versions, "eager": eager, "variables": engine.variables}


def _tokens(requests: Sequence[RequestFinished]) -> dict[int, list[int]]:
    return {ended.request: ended.tokens for ended in requests}


def _equal(ours: dict[int, list[int]], theirs: dict[int, list[int]]) -> int:
    return sum(ours[request] == tokens for request, tokens in theirs.items() if request in ours)
