"""What was to be reached, as ratios within a round, and whether it was.

    ratio of a round    the paged arm's figure ÷ the other arm's, of the same round
    shown               the median over the rounds, the smallest and the largest
    met                 the median is on the right side of the target

Times at the front door are judged alike; they have no other arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from experiment.bench.rows import Profile, Row
from experiment.messages import Message, message

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


# What the targets are of.
MODEL, DTYPE, DEVICE, THREADS = "gpt2", "float32", "cpu", 2

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
OURS = "paged"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A target, the values of the rounds, and the verdict; ``kind`` says how it is meant."""

    id: str
    kind: Literal["at_least", "at_most"]
    unit: Literal["ratio", "ms", "s"]
    target: float
    aim: float | None
    values: list[float]
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
) -> list[Outcome]:
    """Every target with what this run says to it.

    Args:
        judged: the engines ran what the targets are of; else their values stand without verdict.
    """
    found = [_ratio(target, rows) for target in TARGETS]
    found.insert(4, _no_matrix(rows, profiles))
    if not judged:
        found = [replace(each, verdict="not_judged", reason=None) for each in found]
    door = {"walkthrough": WALKTHROUGH_S, "help": HELP_S}
    return found + [_door(name, limit, front_door) for name, limit in door.items()]


def _door(name: str, limit: float, front_door: Mapping[str, Any]) -> Outcome:
    """A front door that failed, or took too long to wait for, has missed its target."""
    values = front_door.get(f"{name}_s")
    reason = front_door.get("reason")
    why = _NOT_RUN if reason is None else Message.model_validate(reason)
    found = _outcome(name, "at_most", "s", limit, values or [], why)
    failed = values == [] and reason is not None
    return replace(found, verdict="not_met") if failed else found


def ratios(rows: Iterable[Row], workload: str, other: str, figure: str) -> list[float]:
    """The paged arm's figure over the other arm's, for each round in which both are sound.

    A row with problems, or with other tokens than its round's first arm, is no measure of speed.
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
    return same and not row.problems


def no_matrix_ms(rows: Iterable[Row], profiles: Iterable[Profile]) -> list[float]:
    """Of each round of A: a step that nobody profiled, less the matrix products of those that were.

    The profiler makes everything else slower, but hardly a product that takes a millisecond. Below
    0 the two were not of the same machine: it was busier for one of them.
    """
    plain = {row.round: row for row in rows if (row.workload, row.arm) == ("A", OURS)}
    values = []
    for profile in profiles:
        row = plain.get(profile.round)
        if (profile.workload, profile.arm) != ("A", OURS) or profile.matrix_ms is None:
            continue
        if row and row.decode_step_s and row.decode_requests == profile.requests:
            values.append(row.decode_step_s * 1e3 - profile.matrix_ms)
    return values


_NOT_RUN = message("bench.not_run")


def _ratio(target: Target, rows: Sequence[Row]) -> Outcome:
    values = ratios(rows, target.workload, target.other, target.figure)
    why = _why_missing(rows, target)
    return _outcome(target.id, "at_least", "ratio", target.target, values, why, target.aim)


def _no_matrix(rows: Sequence[Row], profiles: Sequence[Profile]) -> Outcome:
    found = no_matrix_ms(rows, profiles)
    values = [value for value in found if value > 0]
    why = message("bench.problem.noise") if found else _NOT_RUN
    return _outcome("a_no_matrix", "at_most", "ms", NO_MATRIX_MS, values, why)


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
    unit: Literal["ratio", "ms", "s"],
    target: float,
    values: list[float],
    why: Message,
    aim: float | None = None,
) -> Outcome:
    if not values:
        none = (None, None, None)
        return Outcome(name, kind, unit, target, aim, [], *none, "not_measured", why)
    middle = median(values)
    met = middle >= target if kind == "at_least" else middle <= target
    verdict: Verdict = "met" if met else "not_met"
    return Outcome(name, kind, unit, target, aim, values, middle, min(values), max(values), verdict)
