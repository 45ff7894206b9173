"""Compute the results of each arm from the event log. Pure functions of a record.

Every figure of a report is computed from events, so that old runs can be evaluated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from experiment.analysis.preemption import explain_arm
from experiment.analysis.reconcile import reconcile
from experiment.analysis.results import (
    ArmResult,
    EngineResult,
    MemoryRow,
    RequestResult,
    SecondPart,
)
from experiment.analysis.simulator_check import CHECKED, RecordedArm, check_simulator
from experiment.analysis.variation import largest_process, process_variation, variation
from experiment.analysis.watched import foreign_processes, others_cores, watch
from experiment.events import (
    Channel,
    EngineReported,
    EngineStep,
    EnvironmentProbed,
    PoolReserved,
    Reading,
    RequestFinished,
    RunFinished,
    WorkloadReady,
)
from experiment.machine.environment import Environment
from experiment.record.log import Record
from experiment.replay.arm_events import ArmEvents, arms_of
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import (
    mean_running,
    mean_slots,
    pool_shape,
    timeline,
    witness_problems,
)
from experiment.text.messages import Message, message
from kvsim.core.request import final_tokens
from kvsim.sizing.geometry import max_concurrent_requests
from kvsim.sizing.vllm_capacity import vllm_capacity

# Fields of a finished request that its result has too.
_OF_REQUEST = RequestResult.model_fields.keys() & RequestFinished.model_fields.keys()


def engine_result(
    reported: EngineReported | None, pool: PoolReserved | None, steps: Sequence[EngineStep]
) -> EngineResult | None:
    """Figures reported by an external engine; None for an arm of our engine."""
    if reported is None:
        return None
    block_bytes = pool.slot_bytes * reported.block_size if pool else None
    predicted = None
    if pool and block_bytes:
        blocks = pool.budget_bytes // block_bytes
        predicted = vllm_capacity(blocks, reported.block_size, reported.max_length)
    same = {"arm", "event", "t_ns", "block_size"}
    return EngineResult(
        **reported.model_dump(exclude=same),
        block_bytes=block_bytes,
        foretold_tokens=predicted.tokens if predicted else None,
        foretold_concurrency=predicted.max_concurrency if predicted else None,
        preempted=sum(step.preempted for step in steps),
        prefix_queries=sum(step.prefix_queries for step in steps),
        prefix_hits=sum(step.prefix_hits for step in steps),
        watched_steps=len(steps),
    )


def engine_problems(steps: Sequence[EngineStep]) -> list[Message]:
    """Report steps whose count of allocated blocks differs from the engine's block tables."""
    wrong = [step for step in steps if step.used_blocks != step.table_blocks]
    if not wrong:
        return []
    first = wrong[0]
    return [
        message(
            "problem.engine_blocks",
            n=len(wrong), step=first.step, reported=first.used_blocks, tables=first.table_blocks,
        )
    ]  # fmt: skip


def _environment(probed: EnvironmentProbed | None) -> Environment | None:
    """Environment of the run; None if another version recorded it in another form."""
    try:
        return Environment.model_validate(probed.environment) if probed else None
    except ValidationError:
        return None


def arm_results(record: Record) -> list[ArmResult]:
    """Results of every arm that was started or skipped, in the order of the ladder of arms."""
    workload = record.first(WorkloadReady)
    machine = _environment(record.first(EnvironmentProbed))
    interrupted = any(end.status == "interrupted" for end in record.of(RunFinished))
    results = []
    for events in arms_of(record):
        result, planned = (
            arm_result(events, workload, machine, interrupted=interrupted),
            _recorded_arm(events, workload, record),
        )
        if planned is not None:
            checked, why = check_simulator(planned), explain_arm(planned)
            result = result.model_copy(update={"simulator": checked, "preempting": why})
        results.append(result)
    return results


def _recorded_arm(
    events: ArmEvents, workload: WorkloadReady | None, record: Record
) -> RecordedArm | None:
    """Inputs of the simulator check; None for arms that are not simulated or did not finish."""
    if events.arm not in CHECKED or _status(events) != "finished":
        return None
    if workload is None or events.pool is None:
        return None
    return RecordedArm(
        arm=events.arm,
        config=record.started.config,
        workload=workload,
        pool=events.pool,
        shape=pool_shape(events.pool),
        plans=[step.plan for step in events.steps],
        held=[row.held_blocks for row in timeline(events)[0]],
        tokens={request.request: request.tokens for request in events.requests},
        arrivals={r.request: r.arrival_step or 0 for r in events.requests},
        engine=events.engine,
    )


def arm_result(
    events: ArmEvents,
    workload: WorkloadReady | None,
    machine: Environment | None = None,
    *,
    interrupted: bool = False,
) -> ArmResult:
    """All figures of one arm; None if not measured. ``interrupted``: the run was."""
    rows, problem = timeline(events)
    problems = witness_problems(rows) + engine_problems(events.engine_steps)
    return ArmResult(
        arm=events.arm,
        status=_status(events),
        reason=_reason(events, interrupted),
        problems=[problem] if problem else problems,
        tensor_bytes=_tensor_peak(events),
        fits=_fits(events, workload),
        fits_plain=_fits(events, workload, plain=True),
        requests=[
            RequestResult(new_tokens=len(ended.tokens), **ended.model_dump(include=_OF_REQUEST))
            for ended in events.requests
        ],
        mean_request_s=_mean_service(events.requests),
        moved_bytes=sum(move.bytes for move in events.moved) if events.moved else None,
        quantization=_fields(events.quantized),
        packing=_fields(events.packed),
        mapping=_fields(events.mapping),
        prefix_cache=_fields(events.prefix),
        memory=memory_rows(events.readings),
        reconciliation=reconcile(
            events.readings,
            rows,
            events.pool.slot_bytes if events.pool else None,
            events.reset,
            foreign_processes(events.baseline, events.foreign),
        ),
        watch=watch(events, machine.usable_cores if machine else None),
        engine=engine_result(events.engine, events.pool, events.engine_steps),
        second_part=_second_part(events),
        **_pool_facts(events.pool),
        **_timing(events, ran=bool(rows)),
        **_step_figures(rows),
        **_process_figures(events, machine),
    )


def _second_part(events: ArmEvents) -> SecondPart | None:
    part = events.second_part
    if part is None:
        return None
    return SecondPart(
        requests=part.requests,
        finished=part.finished,
        running=part.running,
        mean_running=part.mean_running,
        generate_s=part.seconds,
        tokens_per_s=part.tokens / part.seconds if part.seconds else None,
        others_cores=others_cores(events.usages, part.started_ns, part.t_ns),
        reason=part.reason,
    )


def _fields(event: BaseModel | None) -> dict[str, Any] | None:
    """Fields of an event without its kind, arm and time."""
    return event.model_dump(exclude={"event", "arm", "t_ns"}) if event else None


def _pool_facts(pool: PoolReserved | None) -> dict[str, Any]:
    named = ("slot_bytes", "kv_dtype", "block_size", "blocks", "budget_bytes")
    return {
        **{name: getattr(pool, name) if pool else None for name in named},
        "scale_bytes": pool.scale_bytes if pool else 0,
        "elastic": pool.elastic if pool else False,
    }


def _timing(events: ArmEvents, ran: bool) -> dict[str, Any]:
    """Figures reported at the arm's end; ``ran``: whether the log has any of its steps."""
    done = events.finished
    tokens = sum(len(request.tokens) for request in events.requests)
    named = ("import_s", "load_s", "generate_s", "threads", "device_name")
    return {
        **{name: getattr(done, name) if done else None for name in named},
        "new_tokens": tokens if ran or done else None,
        "tokens_per_s": tokens / done.generate_s if done and done.generate_s else None,
    }


def _step_figures(rows: list[StepRow]) -> dict[str, Any]:
    """Sums and extremes over the steps; None without steps."""
    busy = [row for row in rows if row.running]
    counted = {
        "preemptions": sum(row.preempted for row in rows),
        "steps": len(busy),
        "witnessed_steps": sum(1 for row in rows if row.witness is not None),
        "copied_blocks": sum(row.copied for row in rows),
        "swapped_blocks": sum(row.swapped for row in rows),
    }
    return {
        **{name: count if rows else None for name, count in counted.items()},
        "peak": max(rows, key=lambda row: (row.live, row.step), default=None),
        "mean": mean_slots(rows),
        "mean_running": mean_running(rows),
        "shared_peak": max((row.shared for row in rows), default=None),
        "reserved_variation": variation([row.reserved for row in busy]),
        "allocated_variation": variation([row.allocated for row in busy]),
    }


def _process_figures(events: ArmEvents, machine: Environment | None) -> dict[str, Any]:
    most = largest_process(events.readings, machine, events.reset, events.baseline)
    varied, varied_by = process_variation(events.readings, events.steps)
    return {
        "process_peak": most.working,
        "process_peak_loading": most.loading,
        "process_peak_channel": most.channel.value if most.channel else None,
        "process_variation": varied,
        "process_variation_channel": varied_by.value if varied_by else None,
    }


def memory_rows(readings: Iterable[Reading]) -> list[MemoryRow]:
    """Readings at stages, and the maximum of each channel over all samples."""
    rows: list[MemoryRow] = []
    largest: dict[Channel, Reading] = {}
    for reading in readings:
        if reading.stage is not None:
            rows.append(_memory_row(reading, reading.stage.value))
        best = largest.get(reading.channel)
        if reading.bytes is not None and (
            best is None or best.bytes is None or reading.bytes > best.bytes
        ):
            largest[reading.channel] = reading
    rows += [_memory_row(reading, "maximum") for reading in largest.values()]
    return rows


def _memory_row(reading: Reading, stage: str) -> MemoryRow:
    return MemoryRow(
        stage=stage,
        request=reading.request,
        channel=reading.channel.value,
        scope=reading.scope.value,
        bytes=reading.bytes,
        total_bytes=reading.total_bytes,
        reason=reading.reason,
        t_ns=reading.t_ns,
    )


def _status(events: ArmEvents) -> Literal["finished", "failed", "skipped"]:
    if events.skipped:
        return "skipped"
    return "finished" if events.finished and not events.failed else "failed"


def _reason(events: ArmEvents, interrupted: bool) -> Message | None:
    if events.skipped:
        return events.skipped.reason
    if events.failed:
        return events.failed.reason
    if events.finished:
        return None
    return message("error.interrupted" if interrupted else "failure.no_end")


def _tensor_peak(events: ArmEvents) -> int | None:
    sizes = [r.bytes for r in events.readings if r.channel is Channel.TENSORS and r.bytes]
    if events.pool and events.pool.tensor_bytes:
        sizes.append(events.pool.tensor_bytes)
    return max(sizes, default=None)


def _fits(events: ArmEvents, workload: WorkloadReady | None, plain: bool = False) -> int | None:
    """Maximum number of concurrent requests of this shape, repeated in order, in the budget.

    ``plain``: for a cache in the model's precision.
    """
    if workload is None or events.pool is None:
        return None
    if workload.sampling.beam_width > 1:
        return None  # sharing among beams depends on the model
    block_bytes = events.pool.block_bytes
    if plain and events.pool.kv_dtype is not None:
        if events.quantized is None:
            return None
        block_bytes = events.quantized.plain_block_bytes
    lengths = [final_tokens(len(r.token_ids), r.max_new_tokens) for r in workload.requests]
    pool = events.pool
    blocks = pool.budget_bytes // block_bytes - pool.engine_blocks
    # With a block table, samples of a prompt share its whole blocks.
    shared = [0 if r.sample_of is None else len(r.token_ids) for r in workload.requests]
    return max_concurrent_requests(lengths, blocks, pool.block_size, () if pool.elastic else shared)


def _mean_service(requests: list[RequestFinished]) -> float | None:
    """Mean time from a request's first step to its end."""
    if not requests:
        return None
    return sum(r.latency_s - r.wait_s for r in requests) / len(requests)
