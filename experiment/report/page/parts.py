"""The facts of a run as the template shows them: small rows of messages and formatted values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.analysis.results import ArmResult, Claim, RequestResult, Results
from experiment.events import ModelPrepared, WorkloadReady, WorkloadRequest
from experiment.files.shipped import program
from experiment.record.log import Record
from experiment.report.facts.block_events import NO_BLOCKS, happened, has_blocks
from experiment.report.facts.key_paths import bytes_path, of_arm
from experiment.report.facts.keyed import Keys, Said
from experiment.report.facts.sharing import sampling_message
from experiment.report.facts.values import excerpt, shell_text, shortened
from experiment.text import DASH
from experiment.text.messages import Message, arm_message, message

_MOST_REQUESTS, _FEWEST_REQUESTS = 40, 12  # of an arm
_MOST_ROWS = 96  # of all arms together
MOST_STAGES = 12
_PROMPT_CHARACTERS = 90
_TEXT_CHARACTERS = 120
_MOST_COMMAND = 20_000


Shown = str | Message | Said


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with what it amounts to in another unit, or no value and the reason."""

    main: Shown | None
    sub: Shown | None = None
    reason: Message | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its label and a cell per arm."""

    label: str
    cells: list[Cell]
    strong: bool = False


def comparison(keys: Keys, results: Results) -> list[Row]:
    """The comparison table, arms side by side."""
    share, mean = "@.peak.live / @.peak.allocated", "@.mean.live / @.mean.allocated"
    return [
        *(_slots_row(keys, results, name) for name in ("reserved", "allocated", "live", "wasted")),
        row(keys, results, "report.compare.share", share, "percent", strong=True),
        row(keys, results, "report.compare.mean_share", mean, "percent"),
        row(keys, results, "report.compare.fits", "@.fits", "count", strong=True),
        row(keys, results, "report.compare.tensors", "@.tensor_bytes", "bytes"),
        row(keys, results, "report.compare.generate", "@.generate_s", "seconds"),
        row(keys, results, "report.compare.rate", "@.tokens_per_s", "rate"),
        row(keys, results, "report.compare.mean_request", "@.mean_request_s", "seconds"),
        row(keys, results, "report.compare.load", "@.load_s", "seconds"),
        _moved_row(keys, results),
        *_event_rows(keys, results),
    ]


def _event_rows(keys: Keys, results: Results) -> list[Row]:
    """Preemptions, swaps and copies, where any arm had some."""
    return [_event_row(keys, results, name) for name in happened(results)]


def _event_row(keys: Keys, results: Results, name: str) -> Row:
    cells = []
    for arm in results.arms:
        shown = keys.number(of_arm(arm, f"@.{name}"), "count") if has_blocks(arm.arm) else None
        unable = arm.status == "finished" and not has_blocks(arm.arm)
        cells.append(Cell(shown, reason=NO_BLOCKS if unable else why_unknown(arm)))
    return Row(f"console.{name}", cells)


def _slots_row(keys: Keys, results: Results, name: str) -> Row:
    cells = []
    for arm in results.arms:
        size = keys.number(bytes_path(arm, f"@.peak.{name}"), "bytes")
        slots = keys.said("report.slots", n=of_arm(arm, f"@.peak.{name}")) if size else None
        cells.append(Cell(size, slots, None if size else why_unknown(arm)))
    return Row(f"term.{name}.name", cells)


def row(
    keys: Keys, results: Results, label: str, path: str, kind: str, strong: bool = False
) -> Row:
    """A row whose cells are looked up by one path, ``@`` being the arm."""
    shown = [(arm, keys.number(of_arm(arm, path), kind)) for arm in results.arms]
    return Row(label, [Cell(v, reason=None if v else why_unknown(arm)) for arm, v in shown], strong)


def _moved_row(keys: Keys, results: Results) -> Row:
    """Only a cache that grows copies itself; the others have nothing to count."""
    cells = []
    for arm in results.arms:
        grows = arm.elastic or arm.status != "finished"
        reason = why_unknown(arm) if grows else message("report.unknown.does_not_grow")
        cells.append(Cell(keys.number(of_arm(arm, "@.moved_bytes"), "bytes"), reason=reason))
    return Row("report.compare.moved", cells)


def one_reason(row: Row) -> Message | None:
    """Why no arm has the figure, where that is the same for all: said once and not for each."""
    reasons = [cell.reason for cell in row.cells if cell.main is None]
    if len(reasons) < max(len(row.cells), 2) or any(each != reasons[0] for each in reasons):
        return None
    return reasons[0]


def why_unknown(arm: ArmResult) -> Message:
    """Why a figure of an arm is missing."""
    return message(f"report.unknown.{arm.status}")


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One request of an arm."""

    number: Shown | None
    sample: Shown | None
    prompt: str | None
    figures: list[Shown | None]
    text: str


_REQUEST_FIGURES = (
    ("@.prompt_tokens", "count"),
    ("@.new_tokens", "count"),
    ("@.wait_s", "seconds"),
    ("@.first_token_s", "seconds"),
    ("@.latency_s", "seconds"),
    ("@.latency_s - @.wait_s", "seconds"),
)


def most_requests(results: Results) -> int:
    """How many requests of an arm the tables show: fewer, the more arms there are."""
    arms = sum(bool(arm.requests) for arm in results.arms)
    return max(_FEWEST_REQUESTS, min(_MOST_REQUESTS, _MOST_ROWS // max(arms, 1)))


def requests(keys: Keys, record: Record, arm: ArmResult, most: int) -> list[RequestLine]:
    """The requests of an arm, the first ``most`` of them."""
    workload = record.first(WorkloadReady)
    prompts = {r.id: (at, r) for at, r in enumerate(workload.requests)} if workload else {}
    return [
        _request(keys, f"results.arms[{arm.arm}].requests.{place}", done, prompts.get(done.request))
        for place, done in enumerate(arm.requests[:most])
    ]


def _request(
    keys: Keys, path: str, done: RequestResult, asked: tuple[int, WorkloadRequest] | None
) -> RequestLine:
    prompt = asked[1].prompt if asked else None
    return RequestLine(
        number=keys.number(f"{path}.request", "text"),
        sample=_sample(keys, *asked) if asked else None,
        prompt=None if prompt is None else excerpt(prompt, _PROMPT_CHARACTERS),
        figures=[
            keys.number(f"length workload.requests.{asked[0]}.prompt", "count") if asked else None,
            *(keys.number(what.replace("@", path), kind) for what, kind in _REQUEST_FIGURES),
        ],
        text=excerpt(done.text, _TEXT_CHARACTERS),
    )


def _sample(keys: Keys, place: int, asked: WorkloadRequest) -> Shown | None:
    """Which sample of which request's prompt this is; None for the first."""
    if asked.sample_of is None:
        return None
    path = f"workload.requests.{place}"
    number, first = f"{path}.id - {path}.sample_of + 1", f"{path}.sample_of"
    return keys.said("report.requests.sample", number=number, request=first)


@dataclass(frozen=True, slots=True)
class ReadingTable:
    """Memory readings of an arm: a row a stage, a column a channel that has any figure.

    ``hidden`` stages of many are left out, those of requests in the middle. A cell without a
    value and a reason was not read at that stage; ``gaps``: whether there is one. Of a stage that
    was read again, in a repeat, the first reading is shown: the time of a row is that of its bytes.
    """

    channels: list[tuple[str, str]]
    rows: list[tuple[Shown, Shown | None, list[Cell]]]
    silent: list[tuple[str, list[Message]]]
    hidden: int
    gaps: bool


def readings(keys: Keys, arm: ArmResult) -> ReadingTable:
    """Arrange an arm's readings by stage and channel."""
    speaking = {row.channel for row in arm.memory if row.bytes is not None}
    scopes = {row.channel: row.scope for row in arm.memory}
    channels = [(name, scope) for name, scope in scopes.items() if name in speaking]
    stages: dict[tuple[str, int | None], dict[str, int]] = {}
    for place, row in enumerate(arm.memory):
        key = (row.stage, None if row.stage == "maximum" else row.request)
        stages.setdefault(key, {}).setdefault(row.channel, place)
    every = list(stages.items())
    half = MOST_STAGES // 2
    shown = every if len(every) <= MOST_STAGES else [*every[:half], *every[-half:]]
    rows = [
        (
            _stage(keys, arm, stage, request, found),
            None if stage == "maximum" else _clock(keys, arm, _earliest(arm, found)),
            [_reading(keys, arm, found.get(name), stage) for name, _ in channels],
        )
        for (stage, request), found in shown
    ]
    silent = [(name, _reasons(arm, name)) for name in scopes if name not in speaking]
    gaps = any(one.main is None and one.reason is None for _, _, cells in rows for one in cells)
    return ReadingTable(channels, rows, silent, len(every) - len(shown), gaps)


def readings_summary(arm: ArmResult) -> Message:
    """How many stages an arm was read at, the maximum as one, and by how many channels."""
    stages = {(row.stage, None if row.stage == "maximum" else row.request) for row in arm.memory}
    channels = {row.channel for row in arm.memory if row.bytes is not None}
    return message("report.readings.summary", stages=len(stages), channels=len(channels))


def hidden_stages(arm: ArmResult) -> Message:
    """How many stages the table leaves out."""
    stages = {(row.stage, None if row.stage == "maximum" else row.request) for row in arm.memory}
    return message("report.readings.hidden", n=max(0, len(stages) - MOST_STAGES))


def _stage(
    keys: Keys, arm: ArmResult, stage: str, request: int | None, found: dict[str, int]
) -> Shown:
    if request is None:
        return message(f"stage.{stage}", request=None)
    place = next(iter(found.values()))
    return keys.said(f"stage.{stage}", request=of_arm(arm, f"@.memory.{place}.request"))


def _earliest(arm: ArmResult, found: dict[str, int]) -> int:
    return min(found.values(), key=lambda place: arm.memory[place].t_ns)


def _reading(keys: Keys, arm: ArmResult, place: int | None, stage: str) -> Cell:
    row = None if place is None else arm.memory[place]
    if row is None or row.bytes is None:
        return Cell(None, reason=row.reason if row else None)
    path = of_arm(arm, f"@.memory.{place}")
    total = (
        keys.said("report.readings.of", total=f"{path}.total_bytes") if row.total_bytes else None
    )
    when = keys.number(f"{path}.t_ns", "clock") if stage == "maximum" else None
    return Cell(keys.number(f"{path}.bytes", "bytes"), when or total)


def _reasons(arm: ArmResult, channel: str) -> list[Message]:
    """Why a channel never had a figure, each reason once."""
    found = {
        row.reason.key: row.reason for row in arm.memory if row.channel == channel and row.reason
    }
    return list(found.values()) or [message("report.unknown.not_read")]


def _clock(keys: Keys, arm: ArmResult, place: int) -> Shown | None:
    return keys.number(of_arm(arm, f"@.memory.{place}.t_ns"), "clock")


def claim_bars(
    keys: Keys, claim: Claim, results: Results
) -> list[tuple[Message, float | None, Shown]]:
    """The figures behind a claim: what, how long a bar, the value in words."""
    params = claim.text.params
    if claim.verdict == "untested":
        return []
    if claim.id == "throughput" and "factor" not in params:
        return [
            (arm_message(arm.arm), arm.tokens_per_s, found or DASH)
            for arm in results.arms
            for found in [keys.number(of_arm(arm, "@.tokens_per_s"), "rate")]
        ]
    names, style = ["contiguous", "paged"], "percent"
    if "slabs" in params:
        names, style = ["slabs", "paged"], "rate" if claim.id == "throughput" else "count"
    if params.get("growing") is not None:
        names.insert(1, "growing")
    path = f"results.claims[{claim.id}].text.params"
    return [
        (
            arm_message(name) if "slabs" in params else message(f"report.claims.{claim.id}_{name}"),
            params.get(name),
            keys.number(f"{path}.{name}", style) or DASH,
        )
        for name in names
    ]


def subject(keys: Keys, record: Record) -> list[tuple[str, Shown]]:
    """What was measured on what: label key and value."""
    model, workload = record.first(ModelPrepared), record.first(WorkloadReady)
    rows: list[tuple[str, Shown | None]] = []
    if model:
        about = {"name": "model.name", "parameters": "model.parameters"}
        rows.append(("model", keys.said("report.subject.model_value", **about)))
        rows.append(("dtype", keys.number("model.dtype", "text")))
    device = keys.number("results.environment.device_name", "text")
    rows.append(("device", device or keys.number("model.device", "text")))
    if workload:
        rows.append(_request_counts(keys, workload.sampling.n))
        sampling = sampling_message(workload.sampling)
        rows.append(("sampling", Said(sampling, "workload.sampling", "sampling")))
        rows.append(("budget", keys.number("workload.budget_bytes", "bytes")))
        lengths = {"length": "workload.max_length", "block": "workload.block_size"}
        rows.append(("lengths", keys.said("report.subject.lengths_value", **lengths)))
    return [(label, value) for label, value in rows if value is not None]


def _request_counts(keys: Keys, samples: int) -> tuple[str, Said]:
    """How many requests; where each prompt has several, that they are its samples."""
    counts = {
        "n": "length workload.requests",
        "tokens": "length workload.requests.*.token_ids.*",
        "new": "max workload.requests.*.max_new_tokens",
    }
    if samples == 1:
        return "requests", keys.said("report.subject.requests_value", **counts)
    said = keys.said("report.subject.samples_value", each="workload.sampling.n", **counts)
    return "samples", said


def repeat_command(words: Sequence[str]) -> str:
    """What starts the same run again; words of a command too long for a page are cut."""
    whole = shell_text([*program(), *words])
    return whole if len(whole) <= _MOST_COMMAND else shell_text([*program(), *shortened(words)])
