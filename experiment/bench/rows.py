"""From the record of a round to rows: one for each arm, every figure out of the log.

Tokens are counted here, from the requests that the log says have ended. How single figures come
about is in :mod:`experiment.bench.figures`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.analysis.arm_results import arm_result
from experiment.bench.figures import (
    believed_seconds,
    decode_step,
    first_tokens,
    lacking,
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

# Whose tokens the others' are compared with: the first of these that finished in the round.
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
    """An arm in a round. Seconds, bytes and shares; None is unknown, and why stands beside it.

    ``useful_tokens`` are the generated ones that requests asked for; ``mean_running`` is the
    time-weighted mean of the requests computed in a step while others waited (None, with its
    reason, where nobody ever did), ``mean_running_all`` that of all steps. ``peak_kv_bytes`` are
    those of the tensors, ``peak_allocated_bytes`` what was handed to requests of them. Shares are
    of the machine's own limit, see :mod:`experiment.bench.shares`. ``decode_step_s`` is the median
    of the steps that decode alone with as many requests as ever ran in one. ``requests`` were asked
    for; of them ``equal_requests`` have the tokens of the arm ``reference`` in the same round (None
    where none finished), ``equal_first_tokens`` begin with the same one (None in files of before it
    was counted), ``tokens_sha256`` is of all of them. In half precision nine tenths have to begin
    alike for the row to count: two orders of summing may part there on a near tie, which few first
    tokens are, while each later one hangs on all before it. ``process_peak_bytes`` count from the
    moment on at which the cache was there, ``loading_peak_bytes`` until then. ``packing`` says what
    became of the weights of our arms, and the seconds that it took; ``profile_run_s`` are those of
    :class:`experiment.events.ProfileRun`; ``kernel`` is what attention of theirs ran on;
    ``variables`` and ``cores`` are those of :class:`experiment.events.ArmStarted`.
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
    """A row for each arm that was started or skipped, in the order of the log."""
    arms = split_by_arm(record)
    rows = [_row(events, record, workload, number) for events in arms]
    reference = reference_of(rows)
    if reference is None:
        return rows
    tokens = {events.arm: _tokens(events.requests) for events in arms}
    firsts = {arm: _firsts(ended) for arm, ended in tokens.items()}
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
    """The arm whose tokens the others' are compared with; None where none finished."""
    done = [row.arm for row in rows if row.status == "finished"]
    return next((arm for arm in (*REFERENCES, *done) if arm in done), None)


def _row(events: ArmEvents, record: Record, workload: str, number: int) -> Row:
    asked = record.first(WorkloadReady)
    assert asked is not None
    probed = record.first(EnvironmentProbed)
    machine = Environment.model_validate(probed.environment) if probed else None
    result = arm_result(events, asked, machine)
    told = _started(events) | {
        "workload": workload, "arm": events.arm, "round": number, "requests": len(asked.requests),
        **_ran_on(events.arm, record),
    }  # fmt: skip
    if result.status != "finished":
        return Row(**told, status=result.status, reason=result.reason)
    steps, _ = timeline(events)
    tokens = useful_tokens(events.requests, asked)
    seconds, problem = believed_seconds(result.generate_s, events.steps)
    short = lacking(events.requests, asked)
    problems = [*result.problems, *(each for each in (problem, short) if each)]
    running, why = running_while_waiting(steps)
    return Row(
        **told,
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
        tokens_sha256=_digest(events.requests),
        import_s=result.import_s,
        load_s=result.load_s,
        threads=result.threads,
        cpu_cores=result.watch.cpu_cores,
        engine=_engine(events),
        problems=problems,
    )


def _ran_on(arm: str, record: Record) -> dict[str, str | None]:
    """The model's precision and, of our engine, the kernel."""
    model = record.first(ModelPrepared)
    kernels = (chosen.kernel for chosen in record.of(KernelChosen) if chosen.arm == arm)
    return {"dtype": model.dtype if model else None, "kernel": next(kernels, None)}


def _started(events: ArmEvents) -> dict[str, Any]:
    """What the arm's process found, and what became of its weights."""
    told: dict[str, Any] = {}
    if events.started is not None:
        variables, cores = events.started.variables, events.started.cores
        if variables is not None and events.engine is not None:
            # An engine that sets some for itself says how they stood in the end.
            variables = variables | events.engine.variables
        told = {"variables": variables, "cores": cores}
    if events.packed is not None:
        packing = events.packed.model_dump(mode="json", exclude={"event", "arm", "t_ns"})
        told |= {"pack_s": events.packed.seconds, "packing": packing}
    if events.profile_run is not None:
        told["profile_run_s"] = events.profile_run.seconds
    return told


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
    """What an engine that is not ours ran as."""
    if events.engine is None:
        return None
    eager = bool(events.engine.arguments.get("enforce_eager"))
    told = events.engine
    return {"versions": told.versions, "eager": eager, "variables": told.variables}


def _tokens(requests: Sequence[RequestFinished]) -> dict[int, list[int]]:
    return {ended.request: ended.tokens for ended in requests}


def _firsts(ended: dict[int, list[int]]) -> dict[int, list[int]]:
    """The first token of those that have one."""
    return {request: tokens[:1] for request, tokens in ended.items() if tokens}


def _equal(ours: dict[int, list[int]], theirs: dict[int, list[int]]) -> int:
    return sum(ours[request] == tokens for request, tokens in theirs.items() if request in ours)


def _digest(requests: Sequence[RequestFinished]) -> str:
    return hashlib.sha256(json.dumps(sorted(_tokens(requests).items())).encode()).hexdigest()
