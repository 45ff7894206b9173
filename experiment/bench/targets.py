"""What was to be reached, as ratios within a round, and whether it was.

    ratio of a round    the paged arm's figure ÷ the other arm's, of the same round
    shown               the median over the rounds, the smallest and the largest
    met                 the median is on the right side of the target

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
from experiment.messages import Message, message

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

    ``rounds`` are those of the workload; fewer ``values`` mean that some rounds lack the figure.
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

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        reason = self.reason.model_dump(mode="json") if self.reason else None
        return asdict(self) | {"reason": reason}


def outcomes(
    rows: Sequence[Row],
    profiles: Sequence[Profile],
    front_door: Mapping[str, Any],
    judged: bool = True,
    judged_gpu: bool = False,
) -> list[Outcome]:
    """Every target with what this run says to it.

    Args:
        judged: the engines ran what the targets are of; else their values stand without verdict.
        judged_gpu: the same of the target of D.
    """
    found = [_ratio(target, rows) for target in TARGETS]
    found.insert(4, _no_matrix(rows, profiles))
    if not judged:
        found = [replace(each, verdict="not_judged", reason=None) for each in found]
    if any(row.workload == "D" for row in rows):
        share = _read_share(rows)
        found.append(share if judged_gpu else replace(share, verdict="not_judged", reason=None))
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


# Two orders of summing differ by more than many a lead of one token over the next.
_HALF = (HALF, "bfloat16")


def ratios(rows: Iterable[Row], workload: str, other: str, figure: str) -> list[float]:
    """The paged arm's figure over the other arm's, for each round in which both are sound.

    A row with problems, or with other tokens than its round's reference, is no measure of speed;
    but that in half precision tokens part, while as many are computed: the tables say where.
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
    same = row.equal_requests is None or row.equal_requests == row.requests
    return (same or row.dtype in _HALF) and not row.problems


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
    """No other arm's tokens are asked for: in float16 they part, and the work stays the same."""
    mine = [row for row in rows if (row.workload, row.arm) == ("D", OURS)]
    shares = [row.decode_read_share for row in mine if not row.problems]
    values = [share for share in shares if share is not None]
    told = [row.reason or row.shares_reason for row in mine] + [p for r in mine for p in r.problems]
    why = next((reason for reason in told if reason is not None), _NOT_RUN)
    count = rounds_of(rows, "D")
    return _outcome("d_read_share", "at_least", "share", READ_SHARE, values, why, count)


def _why_missing(rows: Sequence[Row], target: Target) -> Message:
    for arm in (OURS, target.other):
        ran = [row for row in rows if row.workload == target.workload and row.arm == arm]
        failed = next((row for row in ran if row.reason is not None), None)
        if failed is not None and failed.reason is not None:
            return failed.reason
        problem = next((problem for row in ran for problem in row.problems), None)
        if problem is not None:
            return problem
        if not all(map(_sound, ran)):
            return message("bench.problem.other_tokens")
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
    ends = (min(values), max(values))
    return Outcome(name, kind, unit, target, aim, values, rounds, middle, *ends, verdict)
