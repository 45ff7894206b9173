"""What was to be reached, as ratios within a round, and whether it was.

    ratio of a round    the paged arm's figure ÷ the other arm's, of the same round
    shown               the median over the rounds, the smallest and the largest
    met                 the median is on the right side of the target
    not judged          values stand, but half of the rounds and more lack one, or what was run is
                        not what the target is of

Times at the front door are judged alike; they have no other arm. Nor has the share of the memory's
bandwidth on D, which is of a GPU and stands there only where D was run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from experiment.bench.profiles import Profile
from experiment.bench.rows import Row
from experiment.text.messages import Message, message

Unit = Literal["ratio", "ms", "s", "share"]
Verdict = Literal["met", "not_met", "not_measured", "not_judged"]
RATE, RUNNING = "useful_tokens_per_s", "mean_running"


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of the paged arm to ``other`` that is at least ``target``; ``aim`` lies further."""

    id: str
    workload: str
    other: str
    figure: str
    target: float
    aim: float | None = None


# What the targets are of; on a GPU it is this precision, and any model.
MODEL, DTYPE, DEVICE, THREADS = "gpt2", "float32", "cpu", 2
HALF = "float16"

TARGETS = (
    Target("b_batch", "B", "contiguous.batch", RATE, 3.5),
    Target("b_transformers", "B", "transformers_paged", RATE, 2.4),
    Target("b_vllm", "B", "vllm", RATE, 1.2, aim=1.5),
    Target("a_vllm", "A", "vllm", RATE, 1.0),
    Target("c_running", "C", "slabs", RUNNING, 4.5),
    Target("c_slabs", "C", "slabs", RATE, 2.0),
    Target("c_batch", "C", "contiguous.batch", RATE, 4.0),
)
# At the most: milliseconds of a decode step that are no matrix product, at four requests of A;
# seconds of the default walkthrough, and until help is printed.
NO_MATRIX_MS, WALKTHROUGH_S, HELP_S = 15.0, 60.0, 0.5
# At least: of the memory's bandwidth, by the steps of D that decode alone, on a GPU in float16.
READ_SHARE = 0.6
OURS = "paged"


def compared(workload: str) -> set[str]:
    """Arms that a target of the workload needs: they run in each of its rounds."""
    return {OURS, *(target.other for target in TARGETS if target.workload == workload)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target, the values of the rounds, and the verdict; ``kind`` says how it is meant.

    ``rounds`` are those of the workload; fewer ``values`` mean that some rounds lack the figure,
    and ``reason`` says why. ``unjudged`` says why there is no verdict, if that is not because
    half of the rounds and more lack it.
    """

    id: str
    kind: Literal["at_least", "at_most"]
    unit: Unit
    target: float
    aim: float | None
    values: list[float]
    rounds: int
    median: float | None
    lowest: float | None
    highest: float | None
    verdict: Verdict
    reason: Message | None = None
    unjudged: Message | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        texts = {"reason": self.reason, "unjudged": self.unjudged}
        plain = {
            name: text.model_dump(mode="json") if text else None for name, text in texts.items()
        }
        return asdict(self) | plain

    def not_judged(self, why: Message) -> Outcome:
        """The same without a verdict; what rounds lack is still told, if there were any."""
        reason = self.reason if self.rounds else None
        return replace(self, verdict="not_judged", reason=reason, unjudged=why)


def outcomes(
    rows: Sequence[Row],
    profiles: Sequence[Profile],
    front_door: Mapping[str, Any],
    judged: bool = True,
    judged_gpu: bool = False,
    unjudged: Mapping[str, Message] | None = None,
) -> list[Outcome]:
    """Every target with what this run says to it.

    Args:
        judged: the engines ran what the targets are of; else their values stand without verdict.
        judged_gpu: the same of the target of D.
        unjudged: single targets whose values stand without verdict, and why.
    """
    found = [_ratio(target, rows) for target in TARGETS]
    found.insert(4, _no_matrix(rows, profiles))
    if not judged:
        found = [each.not_judged(OTHERWISE) for each in found]
    alone = unjudged or {}
    found = [
        each.not_judged(alone[each.id]) if each.id in alone and judged and each.values else each
        for each in found
    ]
    if any(row.workload == "D" for row in rows):
        share = _read_share(rows)
        found.append(share if judged_gpu else share.not_judged(NO_SUCH_GPU))
    door = {"walkthrough": WALKTHROUGH_S, "help": HELP_S}
    return found + [_door(name, limit, front_door) for name, limit in door.items()]


def _door(name: str, limit: float, front_door: Mapping[str, Any]) -> Outcome:
    """A front door that failed, or took too long to wait for, has missed its target."""
    values = front_door.get(f"{name}_s")
    reason = front_door.get("reason")
    why = _NOT_RUN if reason is None else Message.model_validate(reason)
    found = _outcome(name, "at_most", "s", limit, values or [], why, len(values or []))
    failed = values == [] and reason is not None
    return replace(found, verdict="not_met") if failed else found


# Two orders of summing differ by more than many a lead of one token over the next, so tokens part;
# but of the first one of each request, which nothing before it has turned, most are the same.
_HALF = (HALF, "bfloat16")
_ALIKE_OF_TEN = 9


def ratios(rows: Iterable[Row], workload: str, other: str, figure: str) -> list[float]:
    """The paged arm's figure over the other arm's, for each round in which both are sound.

    A row with problems, or with other tokens than its round's reference, is no measure of speed;
    but that in half precision tokens part, while as many are computed: the tables say where. There
    nine tenths of the requests have to begin with the same token, or something else was computed.
    """
    found: dict[tuple[int, str], float] = {}
    for row in rows:
        value = getattr(row, figure)
        if row.workload == workload and value and _sound(row):
            found[row.round, row.arm] = value
    numbers = sorted({number for number, _ in found})
    return [
        found[number, OURS] / found[number, other]
        for number in numbers
        if (number, OURS) in found and (number, other) in found
    ]


def _sound(row: Row) -> bool:
    return _why_unsound(row) is None


def _why_unsound(row: Row, all_tokens: bool = True) -> Message | None:
    """Why a row's figures count for nothing; None: they count.

    ``all_tokens``: outside half precision they have to be those of the reference.
    """
    told = row.reason or next(iter(row.problems), None)
    if told is not None:
        return told
    if row.dtype in _HALF:
        return None if _begins_alike(row) else message("bench.problem.first_tokens")
    same = row.equal_requests is None or row.equal_requests == row.requests
    return message("bench.problem.other_tokens") if all_tokens and not same else None


def _begins_alike(row: Row) -> bool:
    """Files of before this was counted do not say."""
    if row.equal_first_tokens is None or row.requests is None:
        return True
    return 10 * row.equal_first_tokens >= _ALIKE_OF_TEN * row.requests


def no_matrix_ms(profiles: Iterable[Profile]) -> list[float]:
    """Of each round of A: a step that nobody profiled, less the matrix products of those that were.

    Both are of the same process. The profiler makes everything else slower, but hardly a product
    that takes a millisecond. Below 0 the machine was busier for the profiled ones.
    """
    return [
        profile.plain_step_ms - profile.matrix_ms
        for profile in profiles
        if (profile.workload, profile.arm) == ("A", OURS)
        and profile.plain_step_ms is not None
        and profile.matrix_ms is not None
    ]


_NOT_RUN = message("bench.not_run")
OTHERWISE, NO_SUCH_GPU = message("bench.note_not_judged"), message("bench.note_not_judged_gpu")


def _ratio(target: Target, rows: Sequence[Row]) -> Outcome:
    values = ratios(rows, target.workload, target.other, target.figure)
    why, count = _why_missing(rows, target), rounds_of(rows, target.workload)
    return _outcome(target.id, "at_least", "ratio", target.target, values, why, count, target.aim)


def rounds_of(rows: Iterable[Row], workload: str) -> int:
    """Rounds of a workload in which anything ran."""
    return len({row.round for row in rows if row.workload == workload})


def _no_matrix(rows: Sequence[Row], profiles: Sequence[Profile]) -> Outcome:
    found = no_matrix_ms(profiles)
    values = [value for value in found if value > 0]
    why = message("bench.problem.noise") if found else _NOT_RUN
    count = rounds_of(rows, "A")
    return _outcome("a_no_matrix", "at_most", "ms", NO_MATRIX_MS, values, why, count)


def _read_share(rows: Sequence[Row]) -> Outcome:
    """In float16, of rows that begin as others do: tokens part there, and the work is the same."""
    mine = [row for row in rows if (row.workload, row.arm) == ("D", OURS)]
    unsound = [_why_unsound(row, all_tokens=False) for row in mine]
    shares = [
        None if why else row.decode_read_share for why, row in zip(unsound, mine, strict=True)
    ]
    values = [share for share in shares if share is not None]
    told = [
        why or row.shares_reason
        for share, why, row in zip(shares, unsound, mine, strict=True)
        if share is None
    ]
    why = next((reason for reason in told if reason is not None), _NOT_RUN)
    count = rounds_of(rows, "D")
    return _outcome("d_read_share", "at_least", "share", READ_SHARE, values, why, count)


def _why_missing(rows: Sequence[Row], target: Target) -> Message:
    """Why some rounds, or all, lack a ratio: the first reason of an arm's rows."""
    for arm in (OURS, target.other):
        for row in rows:
            if (row.workload, row.arm) == (target.workload, arm):
                why = _why_unsound(row)
                if why is None and target.figure == RUNNING and row.mean_running is None:
                    why = row.mean_running_reason
                if why is not None:
                    return why
    return _NOT_RUN


def _outcome(
    name: str,
    kind: Literal["at_least", "at_most"],
    unit: Unit,
    target: float,
    values: list[float],
    why: Message,
    rounds: int,
    aim: float | None = None,
) -> Outcome:
    if not values:
        none = (None, None, None)
        return Outcome(name, kind, unit, target, aim, [], rounds, *none, "not_measured", why)
    middle = median(values)
    met = middle >= target if kind == "at_least" else middle <= target
    verdict: Verdict = "met" if met else "not_met"
    if 2 * len(values) <= rounds:  # whatever those lack might have turned it
        verdict = "not_judged"
    ends = (min(values), max(values))
    lacks = why if len(values) < rounds else None
    return Outcome(name, kind, unit, target, aim, values, rounds, middle, *ends, verdict, lacks)
