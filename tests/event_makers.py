"""Hand-made event logs: two small arms whose figures can be worked out on paper.

contiguous.batch   two slabs of 8, prompts of 2 and 4, three new tokens each
paged              eight blocks of 2, the same requests
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiment.events import (
    ArmFinished,
    ArmStarted,
    Event,
    Keyframe,
    ModelPrepared,
    PoolReserved,
    RequestFinished,
    RunFinished,
    RunStarted,
    Step,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.record.log import Record
from kvsim.accounting.ledger import Ledger, PoolShape
from kvsim.contiguous.planners import StaticBatchPlanner
from kvsim.core.blocks import BlockPool
from kvsim.core.limits import SchedulerConfig
from kvsim.core.scheduler import Request, Scheduler
from kvsim.core.step import FinishReason, StepPlan

SLOT_BYTES = 4
BUDGET = 16 * SLOT_BYTES
PROMPTS = (2, 4)
NEW = 3
TOKENS = {0: [10, 11, 12], 1: [20, 21, 22]}
BATCH, SEQUENTIAL, PAGED = "contiguous.batch", "contiguous.sequential", "paged"


def record(events: Iterable[Event], damaged: int = 0) -> Record:
    """A record as it would have been read."""
    return Record(Path("nowhere"), tuple(events), damaged)


def head() -> list[Event]:
    """What every log begins with."""
    model = ModelPrepared(
        name="tiny", source="random", architecture="gpt2", parameters=1, weights_sha256="ab" * 32,
        config_sha256="ef" * 32, dtype="float32", device="cpu", layers=1, kv_heads=1,
        head_dim=1, element_bytes=2, max_positions=8, vocab_size=50, eos_token_id=None,
    )  # fmt: skip
    requests = [
        WorkloadRequest(id=i, prompt="x", token_ids=[1] * n, max_new_tokens=NEW)
        for i, n in enumerate(PROMPTS)
    ]
    started = RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config={})
    workload = WorkloadReady(requests=requests, max_length=8, block_size=2, budget_bytes=BUDGET)
    return [started, model, workload]


def whole_run() -> list[Event]:
    """A log of both arms, complete."""
    return [*head(), *batch_arm(), *paged_arm(), RunFinished(status="complete")]


def batch_arm(arm: str = BATCH, tokens: dict[int, list[int]] | None = None) -> list[Event]:
    """Two padded rows: 10 live, 2 padding and 4 unwritten slots of 16 at the end."""
    planner = StaticBatchPlanner(2, 8)
    plans = [planner.start(list(enumerate(PROMPTS))), planner.decode(), planner.decode()]
    plans.append(planner.release([(0, FinishReason.LENGTH), (1, FinishReason.LENGTH)]))
    return arm_events(arm, PoolShape(2, 8, SLOT_BYTES), plans, tokens or TOKENS)


def paged_arm(tokens: dict[int, list[int]] | None = None) -> list[Event]:
    """Five blocks of 2 at the end: 10 slots, all of them live."""
    plans = plans_of([(prompt, NEW) for prompt in PROMPTS], 8, 2)
    return arm_events(PAGED, PoolShape(8, 2, SLOT_BYTES), plans, tokens or TOKENS)


def plans_of(
    lengths: Iterable[tuple[int, int]], blocks: int, size: int,
    limits: SchedulerConfig | None = None,
) -> list[StepPlan]:  # fmt: skip
    """What the scheduler does with requests of these (prompt, new) in so many blocks of a size."""
    scheduler, plans = Scheduler(BlockPool(blocks, size), limits), []
    for request, (prompt, new) in enumerate(lengths):
        scheduler.add(Request(request, prompt, new))
    while scheduler.has_work:
        plans.append(scheduler.schedule())
        scheduler.complete(plans[-1])
    return plans


def arm_events(
    arm: str,
    shape: PoolShape,
    plans: Iterable[StepPlan],
    tokens: dict[int, list[int]],
    every: int = 1,
) -> list[Event]:
    """An arm that runs these plans, a picture ``every`` so many steps, each step a second long."""
    events: list[Event] = [
        ArmStarted(arm=arm, pid=1),
        PoolReserved(
            arm=arm, blocks=shape.blocks, block_size=shape.block_size, slot_bytes=SLOT_BYTES,
            elastic=shape.elastic, tensor_bytes=shape.slots * SLOT_BYTES, budget_bytes=BUDGET,
        ),
    ]  # fmt: skip
    ledger = Ledger(shape)
    for index, plan in enumerate(plans):
        ledger.apply(plan)
        second = 10**9
        events.append(
            Step(
                t_ns=(index + 1) * second, started_ns=index * second, arm=arm,
                plan=plan, written_slots=ledger.written_slots,
            )
        )  # fmt: skip
        if index % every:
            continue
        events.append(
            Keyframe(
                arm=arm,
                step=plan.step,
                tables={r: list(table) for r, table in ledger.tables().items()},
                written={r: h.written for r, h in ledger.owners.items() if not h.finished},
            )
        )
    events += [
        RequestFinished(
            arm=arm, request=request, reason="length", prompt_tokens=3,
            tokens=generated, text="", wait_s=0.5, first_token_s=1.0, latency_s=2.0,
        )
        for request, generated in tokens.items()
    ]  # fmt: skip
    events.append(
        ArmFinished(arm=arm, import_s=0.1, load_s=0.2, generate_s=3.0, threads=1, device_name="cpu")
    )
    return events


def changed(
    events: Iterable[Event],
    kind: type,
    change: Callable[[Any], Event | None],
    arm: str,
    nth: int = 0,
) -> list[Event]:
    """The log with the nth event of a type and arm replaced, or left out where that gives None."""
    out: list[Event] = []
    seen = 0
    for event in events:
        if isinstance(event, kind) and getattr(event, "arm", None) == arm:
            seen += 1
            if seen == nth + 1:
                new = change(event)
                out += [] if new is None else [new]
                continue
        out.append(event)
    assert seen > nth, "there is no such event to change"
    return out
