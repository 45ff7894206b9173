"""Rows of messages and formatted values for the template of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from experiment.analysis.metrics import METRICS, Metric
from experiment.analysis.results import ArmResult, Claim, RequestResult, Results, SecondPart
from experiment.analysis.throughput_claim import contiguous_and_paged, second_parts
from experiment.events import ModelPrepared, RunStarted, WorkloadReady, WorkloadRequest
from experiment.files.shipped import program
from experiment.record.log import Record
from experiment.report.facts.arm_figures import figure, path, slots, visible_metrics, why_missing
from experiment.report.facts.run_texts import sampling_message
from experiment.report.facts.tables import wall_clock
from experiment.report.facts.texts import Keyed, keyed
from experiment.report.facts.values import (
    count,
    excerpt,
    percent,
    rate,
    seconds,
    shell_text,
    shortened,
    size,
)
from experiment.text import DASH
from experiment.text.messages import Message, arm_message, message

_MAX_REQUESTS, _FEWEST_REQUESTS = 40, 12  # of an arm
_MAX_ROWS = 96  # of all arms together
_MAX_STAGES = 12
_PROMPT_CHARACTERS = 90
_TEXT_CHARACTERS = 120
_MAX_COMMAND = 20_000
_STRONG = ("live_share", "fits")


Shown = str | Message | Keyed


@dataclass(frozen=True, slots=True)
class Cell:
    """A value, optionally also in another unit, or a reason if unknown."""

    main: Shown | None
    sub: Shown | None = None
    reason: Message | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: label, and a cell per arm."""

    label: Message
    cells: list[Cell]
    strong: bool = False


def comparison(results: Results) -> list[Row]:
    """The comparison table, with a column per arm."""
    return [
        Row(
            metric.label,
            [_cell(metric, results, arm) for arm in results.arms],
            strong=metric.name in _STRONG,
        )
        for metric in visible_metrics(results)
    ]


def at(arm: ArmResult, path: str) -> str:
    """Data path of a field of an arm's result."""
    return f"results.arms[{arm.arm}].{path}"


def _cell(metric: Metric, results: Results, arm: ArmResult) -> Cell:
    """A figure with its path; bytes at the peak with their slots below."""
    of = slots(metric, results, arm)
    return Cell(
        keyed(figure(metric, results, arm), at(arm, path(metric))),
        sub=None if of is None else message("report.slots", n=of),
        reason=why_missing(metric, arm),
    )


def one_reason(row: Row) -> Message | None:
    """The common reason if no arm has the figure; otherwise None."""
    reasons = [cell.reason for cell in row.cells if cell.main is None]
    if len(reasons) < max(len(row.cells), 2) or any(each != reasons[0] for each in reasons):
        return None
    return reasons[0]


def why_unknown(arm: ArmResult) -> Message:
    """Reason why a figure of an arm is missing."""
    return message(f"report.unknown.{arm.status}")


# Of a request: number, sample, prompt, figures, text.
RequestLine = tuple[Shown, Shown | None, str | None, list[Shown | None], str]


def most_requests(results: Results) -> int:
    """Number of requests per arm in the tables, depending on the number of arms."""
    arms = sum(bool(arm.requests) for arm in results.arms)
    return max(_FEWEST_REQUESTS, min(_MAX_REQUESTS, _MAX_ROWS // max(arms, 1)))


def requests(record: Record, arm: ArmResult, most: int) -> list[RequestLine]:
    """The first ``most`` requests of an arm."""
    workload = record.first(WorkloadReady)
    asked = {each.id: each for each in workload.requests} if workload else {}
    return [
        _request(at(arm, f"requests.{place}"), done, asked.get(done.request))
        for place, done in enumerate(arm.requests[:most])
    ]


def _request(path: str, done: RequestResult, asked: WorkloadRequest | None) -> RequestLine:
    prompt = asked.prompt if asked else None
    return (
        Keyed(str(done.request), f"{path}.request"),
        _sample(asked) if asked else None,
        None if prompt is None else excerpt(prompt, _PROMPT_CHARACTERS),
        [
            count(len(prompt)) if prompt else None,
            keyed(count(done.prompt_tokens), f"{path}.prompt_tokens"),
            keyed(count(done.new_tokens), f"{path}.new_tokens"),
            keyed(seconds(done.wait_s), f"{path}.wait_s"),
            keyed(seconds(done.first_token_s), f"{path}.first_token_s"),
            keyed(seconds(done.latency_s), f"{path}.latency_s"),
            seconds(done.latency_s - done.wait_s),
        ],
        excerpt(done.text, _TEXT_CHARACTERS),
    )


def _sample(asked: WorkloadRequest) -> Message | None:
    """Index of a parallel sample and its request; None for the first sample."""
    if asked.sample_of is None:
        return None
    number = asked.id - asked.sample_of + 1
    return message("report.requests.sample", number=number, request=asked.sample_of)


@dataclass(frozen=True, slots=True)
class ReadingTable:
    """Memory readings of an arm: a row per stage, a column per channel with any figure.

    Of ``stages``, some of requests in the middle are omitted. A cell without value and reason was
    not read at that stage; ``gaps``: whether there is one. Of repeated stages the first reading is
    shown, so that time and bytes of a row belong together.
    """

    channels: list[tuple[str, str]]
    rows: list[tuple[Shown, Keyed | None, list[Cell]]]
    stages: int
    gaps: bool


def readings(started: RunStarted, arm: ArmResult) -> ReadingTable:
    """Arrange an arm's readings by stage and channel."""
    speaking = {row.channel for row in arm.memory if row.bytes is not None}
    scopes = {row.channel: row.scope for row in arm.memory}
    channels = [(name, scope) for name, scope in scopes.items() if name in speaking]
    stages: dict[tuple[str, int | None], dict[str, int]] = {}
    for place, row in enumerate(arm.memory):
        key = (row.stage, None if row.stage == "maximum" else row.request)
        stages.setdefault(key, {}).setdefault(row.channel, place)
    shown = every = list(stages.items())
    if len(every) > _MAX_STAGES:
        shown = [*every[: _MAX_STAGES // 2], *every[-_MAX_STAGES // 2 :]]
    rows = []
    for (stage, request), places in shown:
        first = min(places.values(), key=lambda place: arm.memory[place].t_ns)
        cells = [_reading(started, arm, places.get(name), stage) for name, _ in channels]
        clock = None if stage == "maximum" else _clock(started, arm, first)
        rows.append((_stage(arm, stage, request, places), clock, cells))
    gaps = any(one.main is None and one.reason is None for _, _, cells in rows for one in cells)
    return ReadingTable(channels, rows, len(every), gaps)


def _stage(arm: ArmResult, stage: str, request: int | None, places: dict[str, int]) -> Shown:
    """Name of a stage; for a request with the data path of its number."""
    text = message(f"stage.{stage}", request=request)
    place = next(iter(places.values()))
    return text if request is None else Keyed(text, at(arm, f"memory.{place}.request"))


def _reading(started: RunStarted, arm: ArmResult, place: int | None, stage: str) -> Cell:
    row = None if place is None else arm.memory[place]
    if place is None or row is None or row.bytes is None:
        return Cell(None, reason=row.reason if row else None)
    total = message("report.readings.of", total=row.total_bytes) if row.total_bytes else None
    when = _clock(started, arm, place) if stage == "maximum" else None
    return Cell(keyed(size(row.bytes), at(arm, f"memory.{place}.bytes")), when or total)


def _clock(started: RunStarted, arm: ArmResult, place: int) -> Keyed:
    """Local time of a reading."""
    t_ns = arm.memory[place].t_ns
    text = wall_clock(started, t_ns).strftime("%H:%M:%S.%f")[:-3]
    return Keyed(text, at(arm, f"memory.{place}.t_ns"))


def claim_bars(claim: Claim, results: Results) -> list[tuple[Message, float | None, Shown]]:
    """Bars of a claim: label, length, formatted value."""
    params = claim.text.params
    if claim.verdict == "untested":
        return []
    if claim.id == "throughput" and "factor" not in params:
        return [
            (
                arm_message(arm.arm),
                arm.tokens_per_s,
                keyed(rate(arm.tokens_per_s), at(arm, "tokens_per_s")) or DASH,
            )
            for arm in results.arms
        ]
    names, write = ["contiguous", "paged"], percent
    if "slabs" in params:
        names, write = ["slabs", "paged"], rate if claim.id == "throughput" else count
    if params.get("growing") is not None:
        names.insert(1, "growing")
    contiguous, _ = contiguous_and_paged(results)
    arms = {
        "contiguous": contiguous.arm if contiguous else "contiguous.batch",
        "growing": "contiguous.growing",
    }
    path = f"results.claims[{claim.id}].text.params"
    return [
        (
            arm_message(arms.get(name, name)),
            params.get(name),
            keyed(write(params.get(name)), f"{path}.{name}") or DASH,
        )
        for name in names
    ]


def subject(record: Record, results: Results) -> list[Shown]:
    """Model and machine of the run."""
    model = record.first(ModelPrepared)
    values: list[Shown | None] = []
    if model:
        about = {"name": model.name, "parameters": model.parameters}
        values += [message("report.subject.model", **about), model.dtype]
    device = (results.environment or {}).get("device_name")
    if device is not None:
        values.append(Keyed(str(device), "results.environment.device_name"))
    else:
        values.append(model.device if model else None)
    return [value for value in values if value is not None]


def conditions(record: Record) -> list[Shown]:
    """Workload of the run, or of an experiment's cell."""
    workload = record.first(WorkloadReady)
    if workload is None:
        return []
    lengths = {"length": workload.max_length, "block": workload.block_size}
    return [
        _request_counts(workload),
        sampling_message(workload.sampling),
        message("report.subject.budget", budget=workload.budget_bytes),
        message("report.subject.lengths", **lengths),
    ]


def _request_counts(workload: WorkloadReady) -> Message:
    """Number of requests; with parallel samples, of prompts and samples."""
    asked, samples = workload.requests, workload.sampling.n
    counts = {
        "n": len(asked),
        "tokens": sum(len(each.token_ids) for each in asked),
        "new": max((each.max_new_tokens for each in asked), default=None),
    }
    if samples == 1:
        return message("report.subject.requests", **counts)
    return message("report.subject.samples", each=samples, **counts)


# Of a request: its digest in each arm, None without one, and whether all known ones are equal.
DigestRow = tuple[int, list[str | None], bool]


def digests(results: Results, most: int) -> tuple[list[str], list[DigestRow]] | None:
    """Arms, and digests of tokens of the first ``most`` requests; None with fewer than two arms.

    A digest is the first eight hexadecimal digits of SHA-256 of the token ids as JSON.
    """
    arms = [arm for arm in results.arms if arm.requests]
    if len(arms) < 2:
        return None
    tokens = [{one.request: _digest(one.tokens) for one in arm.requests} for arm in arms]
    rows = []
    for request in sorted(set().union(*tokens))[:most]:
        found = [of.get(request) for of in tokens]
        rows.append((request, found, len(set(filter(None, found))) <= 1))
    return [arm.arm for arm in arms], rows


def _digest(tokens: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:8]


def growing(results: Results) -> Message | None:
    """Why not to use the cache that grows; None without one."""
    arm = results.arm("contiguous.growing")
    if arm is None or not arm.moved_bytes or not arm.peak:
        return None
    held = arm.bytes_of(arm.peak.live)
    return message("report.compare.growing", moved=arm.moved_bytes, held=held)


def not_measured(results: Results) -> list[tuple[Message, list[Message]]]:
    """What this run could not measure, with the reasons: arms and channels."""
    missing = [
        (arm_message(arm.arm), [arm.reason])
        for arm in results.arms
        if arm.status == "skipped" and arm.reason
    ]
    rows = [row for arm in results.arms for row in arm.memory]
    speaking = {row.channel for row in rows if row.bytes is not None}
    silent: dict[str, dict[str, Message]] = {}
    for row in rows:
        if row.channel not in speaking and row.reason:
            silent.setdefault(row.channel, {}).setdefault(row.reason.key, row.reason)
    channels = [
        (message(f"channel.{name}"), list(reasons.values())) for name, reasons in silent.items()
    ]
    return missing + channels + _missing_in_second_part(results)


def _missing_in_second_part(results: Results) -> list[tuple[Message, list[Message]]]:
    if second_parts(results) is None:
        return []
    why = message("report.checks.second_part_why")
    return [(message("report.checks.second_part"), [why])]


@dataclass(frozen=True, slots=True)
class SecondPartTable:
    """The second part: its factor or why there is none, and a row for each arm.

    ``columns``: labels. ``rows``: arm, and a figure for each column.
    """

    requests: int
    factor: float | None
    reason: Message
    columns: list[Message]
    rows: list[tuple[str, list[Shown | None]]]


def second_part_table(results: Results) -> SecondPartTable | None:
    """Figures of the second part; None without one."""
    parts = second_parts(results)
    if parts is None:
        return None
    names = ("requests", "running_peak", "generate_s", "tokens_per_s")
    text = next(one for one in results.claims if one.id == "throughput").text
    return SecondPartTable(
        requests=parts[1].requests,
        factor=text.params.get("factor"),
        reason=text,
        columns=[METRICS[name].label for name in names],
        rows=[
            (arm, _second_part(f"results.arms[{arm}].second_part", part))
            for arm, part in zip(("slabs", "paged"), parts, strict=True)
        ],
    )


def _second_part(path: str, part: SecondPart) -> list[Shown | None]:
    return [
        keyed(count(part.finished), f"{path}.finished"),
        keyed(count(part.running), f"{path}.running"),
        keyed(seconds(part.generate_s), f"{path}.generate_s"),
        keyed(rate(part.tokens_per_s), f"{path}.tokens_per_s"),
    ]


def repeat_command(words: Sequence[str]) -> str:
    """Command that starts the same run; long words are cut."""
    whole = shell_text([*program(), *words])
    return whole if len(whole) <= _MAX_COMMAND else shell_text([*program(), *shortened(words)])
