"""From the event log to results: timelines, peaks, comparisons. Pure functions of a record.

Nothing here measures and nothing here prints; every figure of a report is computed from events,
so that any old run can be evaluated again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pydantic import ValidationError

from experiment.engine_report import engine_problems, engine_result
from experiment.environment import Environment
from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    Baseline,
    CacheMoved,
    CacheQuantized,
    Channel,
    EngineReported,
    EngineStep,
    EnvironmentProbed,
    ForeignProcesses,
    HighWaterReset,
    HolesSeen,
    Keyframe,
    LookupTimed,
    PoolReserved,
    PrefixCacheUsed,
    Reading,
    RequestFinished,
    SamplerCost,
    Step,
    TokenMapping,
    Usage,
    WeightsPacked,
    WorkloadReady,
)
from experiment.messages import Message, message
from experiment.reconcile import reconcile
from experiment.record import Record
from experiment.results import (
    ArmResult,
    MemoryRow,
    RequestResult,
    SimulatorCheck,
    SlotFigures,
    StepRow,
    Watch,
)
from experiment.simulator_check import CHECKED, RecordedArm, check_simulator
from experiment.variation import largest_process, process_variation, variation
from experiment.watch import watch
from kvsim.geometry import final_tokens, requests_that_fit
from kvsim.ledger import Ledger, PoolShape, ReplayError, SlotCounts, SlotState
from kvsim.step import OpKind, StepPlan, plan_from_json

T = TypeVar("T")
# Stages of a run that are no arms.
PREPARATION = ("environment", "prepare", "margins", "limits")


@dataclass(frozen=True, slots=True)
class ArmEvents:
    """The events of one arm."""

    arm: str
    pool: PoolReserved | None
    steps: list[Step]
    keyframes: dict[int, Keyframe]
    requests: list[RequestFinished]
    readings: list[Reading]
    finished: ArmFinished | None
    failed: ArmFailed | None
    skipped: ArmSkipped | None
    mapping: TokenMapping | None
    moved: list[CacheMoved]
    prefix: PrefixCacheUsed | None
    quantized: CacheQuantized | None
    usages: list[Usage]
    baseline: Baseline | None
    foreign: ForeignProcesses | None
    sampler_cost: SamplerCost | None
    reset: HighWaterReset | None
    engine: EngineReported | None
    engine_steps: list[EngineStep]
    lookup: LookupTimed | None
    holes: list[HolesSeen]
    started: ArmStarted | None
    packed: WeightsPacked | None


def _environment(probed: EnvironmentProbed | None) -> Environment | None:
    """What the machine had; None where a record of another version says it differently."""
    try:
        return Environment.model_validate(probed.environment) if probed else None
    except ValidationError:
        return None


def arm_results(record: Record) -> list[ArmResult]:
    """Results of every arm that was started or skipped, in the order of the log."""
    workload = record.first(WorkloadReady)
    machine = _environment(record.first(EnvironmentProbed))
    return [
        arm_result(events, workload, machine).model_copy(
            update={"simulator": _simulator(events, workload, record)}
        )
        for events in split_by_arm(record)
    ]


def _simulator(
    events: ArmEvents, workload: WorkloadReady | None, record: Record
) -> SimulatorCheck | None:
    """None for arms that the simulator has no part in, and for those that did not end well."""
    if events.arm not in CHECKED or _status(events) != "finished":
        return None
    if workload is None or events.pool is None:
        return None
    try:
        plans = [plan_from_json(step.plan) for step in events.steps]
    except ValueError:
        return None  # the replay of the plans says so among the arm's problems
    return check_simulator(
        RecordedArm(
            arm=events.arm,
            config=record.started.config,
            workload=workload,
            pool=events.pool,
            shape=pool_shape(events.pool),
            plans=plans,
            tokens={request.request: request.tokens for request in events.requests},
            arrivals={r.request: r.arrival_step or 0 for r in events.requests},
            engine=events.engine,
        )
    )


def split_by_arm(record: Record) -> list[ArmEvents]:
    """Sort the log by arm; the stages before any arm are left out."""
    grouped: dict[str, list[object]] = defaultdict(list)
    for event in record.events:
        arm = getattr(event, "arm", None)
        if arm is not None and arm not in PREPARATION:
            grouped[arm].append(event)
    return [_arm_events(arm, events) for arm, events in grouped.items()]


def _arm_events(arm: str, events: list[object]) -> ArmEvents:
    def of(kind: type[T]) -> list[T]:
        return [event for event in events if isinstance(event, kind)]

    def last(kind: type[T]) -> T | None:
        return next(reversed(of(kind)), None)

    return ArmEvents(
        arm=arm,
        pool=last(PoolReserved),
        steps=of(Step),
        keyframes={frame.step: frame for frame in of(Keyframe)},
        requests=of(RequestFinished),
        readings=of(Reading),
        finished=last(ArmFinished),
        failed=last(ArmFailed),
        skipped=last(ArmSkipped),
        mapping=last(TokenMapping),
        moved=of(CacheMoved),
        prefix=last(PrefixCacheUsed),
        quantized=last(CacheQuantized),
        usages=of(Usage),
        baseline=last(Baseline),
        foreign=last(ForeignProcesses),
        sampler_cost=last(SamplerCost),
        reset=last(HighWaterReset),
        engine=last(EngineReported),
        engine_steps=of(EngineStep),
        lookup=last(LookupTimed),
        holes=of(HolesSeen),
        started=last(ArmStarted),
        packed=last(WeightsPacked),
    )


def arm_result(
    events: ArmEvents, workload: WorkloadReady | None, machine: Environment | None = None
) -> ArmResult:
    """All figures of one arm; what was not measured is None."""
    rows, problem = timeline(events)
    ran = bool(rows)  # where no step was seen nothing was counted either
    most = largest_process(events.readings, machine, events.reset)
    process_varied, varied_by = process_variation(events.readings, events.steps)
    peak = max(rows, key=lambda row: (row.live, row.step), default=None)
    tokens = sum(len(request.tokens) for request in events.requests)
    done = events.finished
    return ArmResult(
        arm=events.arm,
        status=_status(events),
        reason=_reason(events),
        problems=[problem]
        if problem
        else _witness_problems(rows) + engine_problems(events.engine_steps),
        slot_bytes=events.pool.slot_bytes if events.pool else None,
        scale_bytes=events.pool.scale_bytes if events.pool else 0,
        kv_dtype=events.pool.kv_dtype if events.pool else None,
        block_size=events.pool.block_size if events.pool else None,
        blocks=events.pool.blocks if events.pool else None,
        elastic=events.pool.elastic if events.pool else False,
        tensor_bytes=_tensor_peak(events),
        budget_bytes=events.pool.budget_bytes if events.pool else None,
        peak=peak,
        mean=_mean(rows),
        reserved_variation=variation([row.reserved for row in rows if row.running]),
        allocated_variation=variation([row.allocated for row in rows if row.running]),
        process_peak=most.working,
        process_peak_loading=most.loading,
        process_peak_channel=most.channel.value if most.channel else None,
        process_variation=process_varied,
        process_variation_channel=varied_by.value if varied_by else None,
        fits=_fits(events, workload),
        fits_plain=_fits(events, workload, plain=True),
        quantization=events.quantized.model_dump(exclude={"event", "arm", "t_ns"})
        if events.quantized
        else None,
        requests=[_request(request) for request in events.requests],
        new_tokens=tokens if ran or done else None,
        import_s=done.import_s if done else None,
        load_s=done.load_s if done else None,
        generate_s=done.generate_s if done else None,
        tokens_per_s=tokens / done.generate_s if done and done.generate_s else None,
        mean_request_s=_mean_service(events.requests),
        threads=done.threads if done else None,
        device_name=done.device_name if done else None,
        preemptions=sum(row.preempted for row in rows) if ran else None,
        mean_running=_mean_running(rows),
        steps=sum(1 for row in rows if row.running) if ran else None,
        witnessed_steps=sum(1 for row in rows if row.witness is not None) if ran else None,
        moved_bytes=sum(move.bytes for move in events.moved) if events.moved else None,
        mapping=events.mapping.model_dump(
            include={"request", "position", "logical", "physical", "offset", "step"}
        )
        if events.mapping
        else None,
        prefix_cache=events.prefix.model_dump(exclude={"event", "arm", "t_ns"})
        if events.prefix
        else None,
        shared_peak=max((row.shared for row in rows), default=None),
        copied_blocks=sum(row.copied for row in rows) if ran else None,
        swapped_blocks=sum(row.swapped for row in rows) if ran else None,
        memory=memory_rows(events.readings),
        reconciliation=reconcile(
            events.readings, rows, events.pool.slot_bytes if events.pool else None, events.reset
        ),
        watch=_watch(events, machine.usable_cores if machine else None),
        engine=engine_result(events.engine, events.pool, events.engine_steps),
    )


def _watch(events: ArmEvents, cores: float | None) -> Watch:
    return watch(
        events.usages,
        events.steps,
        events.readings,
        events.baseline,
        events.foreign,
        events.sampler_cost,
        cores,
    )


def timeline(events: ArmEvents) -> tuple[list[StepRow], Message | None]:
    """One row per step, derived by replaying the plans; and what stopped the replay, if anything.

    Key frames and block tables are compared on the way.
    """
    if events.pool is None:
        return [], None
    shape = pool_shape(events.pool)
    ledger = Ledger(shape)
    final = _final_lengths(events.steps)
    rows: list[StepRow] = []
    for index, step in enumerate(events.steps):
        try:
            plan = plan_from_json(step.plan)
            counts = ledger.apply(plan)
            _check_keyframe(ledger, events.keyframes.get(plan.step))
        except (ReplayError, ValueError) as error:
            return rows, message("problem.replay", step=index, error=str(error))
        unwritten = counts[SlotState.UNWRITTEN]
        rows.append(
            StepRow(
                step=plan.step,
                t_ns=step.t_ns,
                started_ns=step.started_ns,
                tokens=plan.tokens,
                running=_running(ledger, plan),
                waiting=plan.waiting,
                preempted=len(plan.preempted),
                witness=step.written_slots,
                written=ledger.written_slots,
                never_written=min(_never_written(ledger, final[index]), unwritten),
                shared=ledger.shared_blocks,
                copied=_blocks_of(plan, OpKind.COPY),
                swapped=_blocks_of(plan, OpKind.SWAP_OUT, OpKind.SWAP_IN),
                held_blocks=ledger.owned_blocks,
                table_entries=ledger.table_entries,
                **_figures(counts).model_dump(),
            )
        )
    return rows, None


def pool_shape(pool: PoolReserved) -> PoolShape:
    """The pool of an arm as kvsim describes it."""
    return PoolShape(
        blocks=pool.blocks,
        block_size=pool.block_size,
        slot_bytes=pool.slot_bytes,
        watermark_blocks=pool.watermark_blocks,
        elastic=pool.elastic,
        scale_bytes=pool.scale_bytes,
        engine_blocks=pool.engine_blocks,
    )


def memory_rows(readings: Iterable[Reading]) -> list[MemoryRow]:
    """Readings at stages as they are, and for each channel the largest sample of all."""
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


def _figures(counts: SlotCounts) -> SlotFigures:
    return SlotFigures(
        reserved=counts.reserved,
        allocated=counts.allocated,
        wasted=counts.wasted,
        **{state.value: counts[state] for state in SlotState},
    )


def _mean(rows: list[StepRow]) -> SlotFigures | None:
    """Slots in each state on average over the time in which the arm computed."""
    busy = [row for row in rows if row.running and row.t_ns > row.started_ns]
    total = sum(row.t_ns - row.started_ns for row in busy)
    if not total:
        return None
    names = SlotFigures.model_fields
    return SlotFigures(
        **{
            name: sum(getattr(row, name) * (row.t_ns - row.started_ns) for row in busy) / total
            for name in names
        }
    )


def _mean_running(rows: list[StepRow]) -> float | None:
    """Requests in a step, on average over the time in which the arm computed."""
    busy = [(row.running, row.t_ns - row.started_ns) for row in rows if row.running]
    total = sum(time for _, time in busy)
    return sum(count * time for count, time in busy) / total if total else None


def _final_lengths(steps: list[Step]) -> list[dict[int, int]]:
    """For each step, the positions that each request will have written before it lets go.

    A preempted request starts again, so its stays are counted one by one, backwards.
    """
    final: dict[int, int] = {}
    table: list[dict[int, int]] = []
    for step in reversed(steps):
        try:
            plan = plan_from_json(step.plan)
        except ValueError:
            table.append({})
            continue
        for chunk in plan.chunks:
            final[chunk.request] = max(final.get(chunk.request, 0), chunk.start + chunk.count)
        table.append(dict(final))
        # Before this plan, whoever is freed in it was in an earlier stay.
        for op in plan.ops:
            if op.request is not None and op.kind.value == "free":
                final.pop(op.request, None)
    return table[::-1]


def _blocks_of(plan: StepPlan, *kinds: OpKind) -> int:
    return sum(len(op.blocks) for op in plan.ops if op.kind in kinds)


def _never_written(ledger: Ledger, final: dict[int, int]) -> int:
    """Slots that are handed out now and will be given back without ever being written."""
    size = ledger.shape.block_size
    return sum(
        max(0, len(h.table) * size - h.padding - final.get(request, h.written))
        for request, h in ledger.holders.items()
        if not h.finished
    )


def _running(ledger: Ledger, plan: StepPlan) -> int:
    """Requests that the step computes; rows of a batch that have ended do not count."""
    return sum(not ledger.holders[chunk.request].finished for chunk in plan.chunks)


def _check_keyframe(ledger: Ledger, frame: Keyframe | None) -> None:
    if frame is None:
        return
    tables = {request: list(table) for request, table in ledger.tables().items()}
    if tables != {request: table for request, table in frame.tables.items() if table}:
        raise ReplayError(f"block tables differ from the picture taken at step {frame.step}")
    written = {r: h.written for r, h in ledger.holders.items() if not h.finished}
    if written != frame.written:
        raise ReplayError(f"written slots differ from the picture taken at step {frame.step}")


def _witness_problems(rows: list[StepRow]) -> list[Message]:
    """Steps at which the tensors themselves disagree with the tables."""
    wrong = [row for row in rows if row.witness is not None and row.witness != row.written]
    if not wrong:
        return []
    first = wrong[0]
    return [
        message(
            "problem.witness",
            n=len(wrong), step=first.step, tables=first.written, tensors=first.witness,
        )
    ]  # fmt: skip


def _status(events: ArmEvents) -> Literal["finished", "failed", "skipped"]:
    if events.skipped:
        return "skipped"
    return "finished" if events.finished and not events.failed else "failed"


def _reason(events: ArmEvents) -> Message | None:
    if events.skipped:
        return events.skipped.reason
    if events.failed:
        return events.failed.reason
    return None if events.finished else message("failure.no_end")


def _tensor_peak(events: ArmEvents) -> int | None:
    sizes = [r.bytes for r in events.readings if r.channel is Channel.TENSORS and r.bytes]
    if events.pool and events.pool.tensor_bytes:
        sizes.append(events.pool.tensor_bytes)
    return max(sizes, default=None)


def _fits(events: ArmEvents, workload: WorkloadReady | None, plain: bool = False) -> int | None:
    """How many requests like these, repeated in order, the budget holds at the same time.

    ``plain``: were the cache in the model's own precision.
    """
    if workload is None or events.pool is None:
        return None
    if workload.sampling.beam_width > 1:
        return None  # what beams share is decided by the model
    block_bytes = events.pool.block_bytes
    if plain and events.pool.kv_dtype is not None:
        if events.quantized is None:
            return None
        block_bytes = events.quantized.plain_block_bytes
    lengths = [final_tokens(len(r.token_ids), r.max_new_tokens) for r in workload.requests]
    pool = events.pool
    blocks = pool.budget_bytes // block_bytes - pool.engine_blocks
    # Samples of a prompt share its whole blocks where the arm has a block table.
    shared = [0 if r.sample_of is None else len(r.token_ids) for r in workload.requests]
    return requests_that_fit(lengths, blocks, pool.block_size, () if pool.elastic else shared)


def _request(event: RequestFinished) -> RequestResult:
    return RequestResult(
        request=event.request,
        reason=event.reason,
        prompt_tokens=event.prompt_tokens,
        new_tokens=len(event.tokens),
        wait_s=event.wait_s,
        first_token_s=event.first_token_s,
        latency_s=event.latency_s,
        text=event.text,
        tokens=event.tokens,
    )


def _mean_service(requests: list[RequestFinished]) -> float | None:
    """Mean time from a request's first step to its end."""
    if not requests:
        return None
    return sum(r.latency_s - r.wait_s for r in requests) / len(requests)
