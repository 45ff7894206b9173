"""The facts of a run as the template shows them: small rows of messages and formatted values."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from experiment.events import (
    ModelPrepared,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.i18n import format_bytes
from experiment.messages import Message, message
from experiment.record import Record
from experiment.report.frames import wall_clock
from experiment.report.sharing import sampling_message
from experiment.report.values import count, percent, rate, readable, seconds, size
from experiment.results import ArmResult, Claim, MemoryRow, RequestResult, Results, SlotFigures

MOST_REQUESTS = 100
_PROMPT_CHARACTERS = 90
_TEXT_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with what it amounts to in another unit, or no value and the reason."""

    main: str | Message | None
    sub: str | Message | None = None
    reason: Message | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its label and a cell per arm."""

    label: str
    cells: list[Cell]
    strong: bool = False


def comparison(results: Results) -> list[Row]:
    """The comparison table, arms side by side."""
    return [
        _slots_row(results, "reserved"),
        _slots_row(results, "allocated"),
        _slots_row(results, "live"),
        _slots_row(results, "wasted"),
        _row(results, "report.compare.share", lambda a: percent(_use(a.peak)), strong=True),
        _row(results, "report.compare.mean_share", lambda a: percent(_use(a.mean))),
        _row(results, "report.compare.fits", lambda a: count(a.fits), strong=True),
        _row(results, "report.compare.tensors", lambda a: size(a.tensor_bytes)),
        _row(results, "report.compare.generate", lambda a: seconds(a.generate_s)),
        _row(results, "report.compare.rate", lambda a: rate(a.tokens_per_s)),
        _row(results, "report.compare.mean_request", lambda a: seconds(a.mean_request_s)),
        _row(results, "report.compare.load", lambda a: seconds(a.load_s)),
        _moved_row(results),
        *_event_rows(results),
    ]


def _event_rows(results: Results) -> list[Row]:
    """Preemptions, swaps and copies, where any arm had some."""
    keys = ("preemptions", "swapped_blocks", "copied_blocks")
    happened = [key for key in keys if any(getattr(arm, key) for arm in results.arms)]
    return [
        _row(results, f"console.{key}", lambda arm, key=key: count(getattr(arm, key)))  # type: ignore[misc]
        for key in happened
    ]


def _slots_row(results: Results, name: str) -> Row:
    cells = []
    for arm in results.arms:
        value = getattr(arm.peak, name) if arm.peak else None
        if value is None:
            cells.append(Cell(None, reason=why_unknown(arm)))
        else:
            cells.append(Cell(size(arm.bytes_of(value)), message("report.slots", n=round(value))))
    return Row(f"term.{name}.name", cells)


def _row(
    results: Results, label: str, value: Callable[[ArmResult], str | None], strong: bool = False
) -> Row:
    shown = [(arm, value(arm)) for arm in results.arms]
    return Row(label, [Cell(v, reason=None if v else why_unknown(arm)) for arm, v in shown], strong)


def _moved_row(results: Results) -> Row:
    """Only a cache that grows copies itself; the others have nothing to count."""
    cells = []
    for arm in results.arms:
        grows = arm.elastic or arm.status != "finished"
        reason = why_unknown(arm) if grows else message("report.unknown.does_not_grow")
        cells.append(Cell(size(arm.moved_bytes), reason=reason))
    return Row("report.compare.moved", cells)


def why_unknown(arm: ArmResult) -> Message:
    """Why a figure of an arm is missing."""
    return message(f"report.unknown.{arm.status}")


def _use(figures: SlotFigures | None) -> float | None:
    return figures.utilisation if figures else None


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request of an arm."""

    number: int
    sample: Message | None
    prompt: str | None
    characters: str | None
    tokens_in: str
    tokens_new: str
    time: str | None
    text: str


def requests(record: Record, arm: ArmResult) -> list[RequestLine]:
    """The requests of an arm, the first ones of many."""
    workload = record.first(WorkloadReady)
    prompts = {r.id: r for r in workload.requests} if workload else {}
    return [_request(r, prompts.get(r.request)) for r in arm.requests[:MOST_REQUESTS]]


def _request(done: RequestResult, asked: WorkloadRequest | None) -> RequestLine:
    return RequestLine(
        number=done.request,
        sample=_sample(asked) if asked else None,
        prompt=readable(asked.prompt, _PROMPT_CHARACTERS) if asked else None,
        characters=count(len(asked.prompt)) if asked else None,
        tokens_in=f"{done.prompt_tokens:,}",
        tokens_new=f"{done.new_tokens:,}",
        time=seconds(done.latency_s - done.wait_s),
        text=readable(done.text, _TEXT_CHARACTERS),
    )


def _sample(asked: WorkloadRequest) -> Message | None:
    """Which sample of which request's prompt this is; None for the first."""
    first = asked.sample_of
    if first is None:
        return None
    return message("report.requests.sample", number=asked.id - first + 1, request=first)


@dataclass(frozen=True, slots=True)
class ReadingTable:
    """Memory readings of an arm: a row a stage, a column a channel that has any figure."""

    channels: list[tuple[str, str]]
    rows: list[tuple[Message, str, list[Cell]]]
    silent: list[tuple[str, list[Message]]]


def readings(record: Record, arm: ArmResult) -> ReadingTable:
    """Arrange an arm's readings by stage and channel."""
    speaking = {row.channel for row in arm.memory if row.bytes is not None}
    scopes = {row.channel: row.scope for row in arm.memory}
    channels = [(name, scope) for name, scope in scopes.items() if name in speaking]
    stages: dict[tuple[str, int | None], dict[str, MemoryRow]] = {}
    for row in arm.memory:
        key = (row.stage, None if row.stage == "maximum" else row.request)
        stages.setdefault(key, {})[row.channel] = row
    rows = [
        (
            message(f"stage.{stage}", request=request),
            "" if stage == "maximum" else _clock(record, min(r.t_ns for r in found.values())),
            [_reading(record, found.get(name), stage) for name, _ in channels],
        )
        for (stage, request), found in stages.items()
    ]
    silent = [(name, _reasons(arm, name)) for name in scopes if name not in speaking]
    return ReadingTable(channels, rows, silent)


def _reading(record: Record, row: MemoryRow | None, stage: str) -> Cell:
    if row is None:
        return Cell(None, reason=message("report.unknown.not_read"))
    if row.bytes is None:
        return Cell(None, reason=row.reason or message("report.unknown.not_read"))
    total = message("report.readings.of", total=row.total_bytes) if row.total_bytes else None
    when = _clock(record, row.t_ns) if stage == "maximum" else None
    return Cell(format_bytes(row.bytes), when or total)


def _reasons(arm: ArmResult, channel: str) -> list[Message]:
    """Why a channel never had a figure, each reason once."""
    found = {
        row.reason.key: row.reason for row in arm.memory if row.channel == channel and row.reason
    }
    return list(found.values()) or [message("report.unknown.not_read")]


def _clock(record: Record, t_ns: int) -> str:
    return wall_clock(record.started, t_ns).strftime("%H:%M:%S.%f")[:-3]


def claim_bars(claim: Claim, results: Results) -> list[tuple[Message, float | None, str]]:
    """The figures behind a claim: what, how long a bar, the value in words."""
    params = claim.text.params
    if claim.verdict == "untested":
        return []
    if claim.id == "throughput":
        return [
            (message(f"arm_name.{arm.arm.replace('.', '_')}"), arm.tokens_per_s, _rate_text(arm))
            for arm in results.arms
        ]
    names = ["contiguous", "paged"]
    if params.get("growing") is not None:
        names.insert(1, "growing")
    return [
        (message(f"report.claims.{claim.id}_{name}"), value, percent(value) or "—")
        for name in names
        for value in [params.get(name)]
    ]


def _rate_text(arm: ArmResult) -> str:
    return rate(arm.tokens_per_s) or "—"


def subject(record: Record, results: Results) -> list[tuple[str, str | Message]]:
    """What was measured on what: label key and value."""
    model, workload = record.first(ModelPrepared), record.first(WorkloadReady)
    rows: list[tuple[str, str | Message]] = []
    if model:
        about = {"name": model.name, "parameters": model.parameters}
        rows.append(("model", message("report.subject.model_value", **about)))
        rows.append(("dtype", model.dtype))
    environment = results.environment or {}
    device = environment.get("device_name") or (model.device if model else None)
    if device:
        rows.append(("device", str(device)))
    if workload:
        rows.append(("requests", _request_counts(workload)))
        rows.append(("sampling", sampling_message(workload.sampling)))
        rows.append(("budget", format_bytes(workload.budget_bytes)))
        lengths = {"length": workload.max_length, "block": workload.block_size}
        rows.append(("lengths", message("report.subject.lengths_value", **lengths)))
    return rows


def _request_counts(workload: WorkloadReady) -> Message:
    return message(
        "report.subject.requests_value",
        n=len(workload.requests),
        tokens=sum(len(r.token_ids) for r in workload.requests),
        new=max((r.max_new_tokens for r in workload.requests), default=None),
    )


def repeat_command(record: Record) -> str:
    """The words that start the same run again."""
    return shlex.join(["python", "run_experiment.py", *record.started.command])
