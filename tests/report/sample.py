"""A small run, written down as a real one is, without torch: kvsim's own planners make the plans.

Three requests; one contiguous batch, one paged arm, one arm that failed and one that was skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    Channel,
    EnvironmentProbed,
    ModelPrepared,
    PoolReserved,
    Reading,
    RequestFinished,
    RunFinished,
    RunStarted,
    Scope,
    Stage,
    StageEntered,
    Step,
    TokenMapping,
    WorkloadReady,
    WorkloadRequest,
    encode,
)
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.report.page.page import report_html
from experiment.text.messages import message
from kvsim.contiguous.planners import StaticBatchPlanner
from kvsim.core.blocks import BlockPool
from kvsim.core.scheduler import Request, Scheduler
from kvsim.core.step import FinishReason, StepPlan

PROMPTS = ("Hello!", "Tell me a story", "Thanks")
NEW = 12
LENGTHS = (3, 20, 5)
MAX_LENGTH = 64
BLOCK = 8
SLOT_BYTES = 2 * 2 * 4 * 16 * 4
BUDGET = 3 * MAX_LENGTH * SLOT_BYTES


@dataclass
class Log:
    """Collects events; every one is a millisecond after the one before."""

    events: list[BaseModel] = field(default_factory=list)
    now: int = 1_000_000_000

    def tick(self) -> int:
        self.now += 1_000_000
        return self.now

    def add(self, kind: type[BaseModel], **values: object) -> None:
        self.events.append(kind(t_ns=self.tick(), **values))


def make_record(
    directory: Path,
    prompts: Sequence[str] = PROMPTS,
    arms: Iterable[str] = ("contiguous.batch", "paged", "failed", "skipped"),
    config: dict[str, object] | None = None,
) -> Record:
    """Write a run into ``directory`` and read it back."""
    log = Log()
    _before_arms(log, prompts, config or {"cache": {"max_length": MAX_LENGTH}})
    writers = {
        "contiguous.batch": _contiguous,
        "paged": _paged,
        "failed": _failed,
        "skipped": _skipped,
    }
    for arm in arms:
        writers[arm](log)
    log.add(RunFinished, status="incomplete")
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(encode(event) + "\n" for event in log.events)
    (directory / EVENTS_FILE).write_text(text, encoding="utf-8")
    return read_record(directory)


def write_page(record: Record, results: Results | None = None, lang: str = "en") -> Path:
    """Write the page of a run into its directory."""
    file = record.directory / "report.html"
    file.write_text(report_html(record, results or evaluate(record), lang), encoding="utf-8")
    return file


def _before_arms(log: Log, prompts: Sequence[str], config: dict[str, object]) -> None:
    log.add(
        RunStarted, version="0", wall_ns=1_795_000_000_000_000_000, utc_offset_s=3600, lang="en",
        command=["--prompt", "it's"], config=config,
    )  # fmt: skip
    log.add(
        EnvironmentProbed,
        environment={"device_name": "Test CPU", "system": {"os": "Linux"}, "gpus": []},
    )
    log.add(
        ModelPrepared, name="tiny", source="random", architecture="GPT2LMHeadModel",
        parameters=1234, weights_sha256="ab" * 32, dtype="float32", device="cpu", layers=2,
        kv_heads=4, head_dim=16, element_bytes=4, max_positions=1024, vocab_size=100,
        eos_token_id=None, notes=[message("model.random_text")],
    )  # fmt: skip
    requests = [
        WorkloadRequest(id=i, prompt=p, token_ids=[1] * n, max_new_tokens=NEW)
        for i, (p, n) in enumerate(zip(prompts, LENGTHS, strict=True))
    ]
    log.add(
        WorkloadReady, requests=requests, max_length=MAX_LENGTH, block_size=BLOCK,
        budget_bytes=BUDGET,
    )  # fmt: skip


def _stage(log: Log, arm: str, stage: Stage, request: int | None = None) -> None:
    log.add(StageEntered, arm=arm, stage=stage, request=request)
    for channel, scope, size in (
        (Channel.RSS, Scope.TREE, 300 * 2**20),
        (Channel.TORCH_ALLOCATED, Scope.PROCESS, None),
    ):
        reason = None if size else message("memory.torch_cpu")
        log.add(
            Reading, arm=arm, channel=channel, scope=scope, bytes=size, reason=reason, stage=stage,
            request=request,
        )  # fmt: skip


def _begin(log: Log, arm: str, blocks: int, block_size: int) -> None:
    log.add(ArmStarted, arm=arm, pid=1)
    _stage(log, arm, Stage.START)
    log.add(
        PoolReserved, arm=arm, blocks=blocks, block_size=block_size, slot_bytes=SLOT_BYTES,
        tensor_bytes=blocks * block_size * SLOT_BYTES, budget_bytes=BUDGET,
    )  # fmt: skip
    _stage(log, arm, Stage.CACHE_READY)


def _step(log: Log, arm: str, plan: StepPlan) -> None:
    started = log.tick()
    log.add(Step, arm=arm, plan=plan, started_ns=started)


def _end(log: Log, arm: str) -> None:
    for request, length in enumerate(LENGTHS):
        log.add(
            RequestFinished, arm=arm, request=request, reason="length", prompt_tokens=length,
            tokens=list(range(NEW)), text="text of " + arm, wait_s=0.001, first_token_s=0.01,
            latency_s=0.5,
        )  # fmt: skip
        _stage(log, arm, Stage.REQUEST_DONE, request)
    _stage(log, arm, Stage.LAST_STEP)
    _stage(log, arm, Stage.RELEASED)
    log.add(
        ArmFinished, arm=arm, import_s=1.0, load_s=0.5, generate_s=0.6, threads=1,
        device_name="cpu",
    )  # fmt: skip


def _contiguous(log: Log) -> None:
    arm = "contiguous.batch"
    _begin(log, arm, len(LENGTHS), MAX_LENGTH)
    planner = StaticBatchPlanner(len(LENGTHS), MAX_LENGTH)
    _step(log, arm, planner.start(list(enumerate(LENGTHS))))
    for _ in range(NEW - 1):
        _step(log, arm, planner.decode())
    ended = [(request, FinishReason.LENGTH) for request in range(len(LENGTHS))]
    _step(log, arm, planner.release(ended))
    _end(log, arm)


def _paged(log: Log) -> None:
    arm = "paged"
    blocks = BUDGET // (BLOCK * SLOT_BYTES)
    _begin(log, arm, blocks, BLOCK)
    scheduler = Scheduler(BlockPool(blocks, BLOCK))
    for request, length in enumerate(LENGTHS):
        scheduler.add(Request(request, length, NEW))
    while scheduler.has_work:
        plan = scheduler.schedule()
        _step(log, arm, plan)
        if plan.step == 9:
            place = scheduler.pool.locate(0, 10)
            log.add(
                TokenMapping, arm=arm, step=9, request=0, position=10, logical=place.logical,
                physical=place.physical, offset=place.offset,
            )  # fmt: skip
        scheduler.complete(plan)
    _end(log, arm)


def _failed(log: Log) -> None:
    arm = "contiguous.sequential"
    log.add(ArmStarted, arm=arm, pid=2)
    log.add(ArmFailed, arm=arm, reason=message("failure.out_of_memory"))


def _skipped(log: Log) -> None:
    log.add(
        ArmSkipped, arm="contiguous.growing",
        reason=message("failure.exception", error="Error: <b>no</b>"),
    )  # fmt: skip
