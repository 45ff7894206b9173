"""Gates: limits on counted figures, read from TOML, judged against a run and its baseline.

[limits]
"paged/wasted_slots" = { max = 29 }                   a number
"*/preemptions"      = { max = 0 }                    any arm; at least one must be there
"paged/fits"         = { min = "baseline - 5 %" }     relative to the baseline

Unknown figures and figures of incomplete runs never pass. A gate without limits is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from experiment.analysis.experiment_results import Number
from experiment.compare.figures import parse_id
from experiment.compare.results import Figure, Side
from experiment.compare.sides import is_finite, same, why_not_comparable
from experiment.config.reading import read_toml
from experiment.text.errors import shown, unknown, user_error
from experiment.text.messages import Message, message
from kvsim.base.spelling import nearest

Bound = Literal["max", "min", "equal"]
BOUNDS: tuple[Bound, ...] = ("max", "min", "equal")
GateVerdict = Literal["passed", "failed", "unknown"]
# A gate is read by people. These bound the work where someone else's run has thousands of figures.
MAX_LIMITS = 200
MAX_PATTERN = 300
_MAX_NEAR, _MAX_NAMES = 5, 1000  # limits that get a suggestion, and the figures looked at
_RELATIVE = re.compile(r"baseline(?:\s*([+-])\s*(\d+(?:\.\d+)?)\s*(%?))?")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on every figure that matches ``pattern``.

    ``number`` is the bound. If ``relative``, it is added to the baseline's figure, as a number or
    as ``percent`` of that figure.
    """

    pattern: str
    bound: Bound
    number: Number
    relative: bool = False
    percent: bool = False

    @property
    def text(self) -> str:
        """The limit as written in the file."""
        if not self.relative:
            return f"{self.number:,}"
        sign, unit = "-" if self.number < 0 else "+", " %" if self.percent else ""
        return f"baseline {sign} {abs(self.number):g}{unit}" if self.number else "baseline"


@dataclass(frozen=True, slots=True)
class GateResult:
    """A limit applied to a figure: ``allowed`` is the bound; ``reason``: why it is unknown."""

    limit: Limit
    id: str
    figure: Figure | None
    allowed: Number | None
    verdict: GateVerdict
    reason: Message | None = None


def read_gate(path: Path) -> tuple[Limit, ...]:
    """Read a gate's file.

    Raises:
        UserError: no limits in it or too many, an unknown metric, one that is no count, or no limit
            that could be meant.
    """
    limits = read_toml(path).get("limits")
    if not isinstance(limits, dict) or not limits:
        raise user_error("error.gate.no_limits", path=str(path))
    for what, count, most in (
        ("limits", len(limits), MAX_LIMITS),
        ("characters", max(map(len, limits)), MAX_PATTERN),
    ):
        if count > most:
            name = f"{path}: {what}"
            raise user_error("error.limit_le", config_key=name, value=count, limit=most)
    found = tuple(each for pattern, table in limits.items() for each in _limits(pattern, table))
    for limit in found:
        *_, metric = parse_id(limit.pattern)
        if metric.kind != "count":
            raise user_error(f"error.gate.{metric.kind}", id=limit.pattern)
    return found


def judge(limits: Sequence[Limit], side: Side, baseline: Side | None) -> list[GateResult]:
    """Every limit against every figure that it fits, or once as unknown where it fits none."""
    ids = list(dict.fromkeys((*side.figures, *(baseline.figures if baseline else ()))))
    by_metric: dict[str, list[str]] = {}
    for name in ids:
        by_metric.setdefault(_metric(name), []).append(name)
    found, unmatched = list[GateResult](), 0
    for limit in limits:
        fitting = [n for n in by_metric.get(_metric(limit.pattern), ()) if _fits(limit.pattern, n)]
        if not fitting:
            unmatched += 1
            found.append(_nothing(limit, ids[:_MAX_NAMES] if unmatched <= _MAX_NEAR else ()))
        found += [_judge_one(limit, name, side, baseline) for name in fitting]
    return [_require_whole_runs(judged, side, baseline) for judged in found]


def tally(judged: Sequence[GateResult]) -> tuple[int, int]:
    """Number of limits that did not pass, and number of all limits."""
    broken = {one.limit for one in judged if one.verdict != "passed"}
    return len(broken), len({one.limit for one in judged})


def _require_whole_runs(judged: GateResult, side: Side, baseline: Side | None) -> GateResult:
    """Replace a pass by unknown if a run is incomplete or contradicts itself."""
    asked = (side, baseline if judged.limit.relative else None)
    name = next((one.name for one in asked if one is not None and not one.whole), None)
    if judged.verdict != "passed" or name is None:
        return judged
    return replace(
        judged, verdict="unknown", reason=message("compare.gate.reason.not_whole", name=name)
    )


def _limits(pattern: str, table: Any) -> Iterator[Limit]:
    if not isinstance(table, dict) or not table:
        raise user_error("error.gate.no_table", id=pattern)
    for bound, value in table.items():
        if bound not in BOUNDS:
            raise unknown("bound", bound, BOUNDS)
        yield _limit(pattern, bound, value)


def _limit(pattern: str, bound: Bound, value: Any) -> Limit:
    if isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value):
        return Limit(pattern, bound, value)
    match = _RELATIVE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        sign, number, percent = match.groups()
        size = float(number or 0) * (-1 if sign == "-" else 1)
        if is_finite(size):
            return Limit(pattern, bound, size, relative=True, percent=bool(percent))
    raise user_error("error.gate.value", id=pattern, bound=bound, value=shown(value))


def _metric(name: str) -> str:
    return name.rpartition("/")[2]


def _nothing(limit: Limit, ids: Sequence[str]) -> GateResult:
    """A limit that fits no figure, and the nearest name among ``ids``."""
    near = nearest(limit.pattern, ids)
    key = "compare.gate.reason.nothing_near" if near else "compare.gate.reason.nothing"
    why = message(key, near=near[0]) if near else message(key)
    return GateResult(limit, limit.pattern, None, None, "unknown", why)


def _judge_one(limit: Limit, name: str, side: Side, baseline: Side | None) -> GateResult:
    figure = side.figures.get(name)
    if figure is None or figure.value is None:
        missing = figure.reason if figure else None
        why = missing or message("compare.reason.not_had")
        return GateResult(limit, name, figure, None, "unknown", why)
    allowed, reason = _allowed(limit, figure, side, baseline)
    if allowed is None:
        return GateResult(limit, name, figure, None, "unknown", reason)
    return GateResult(
        limit, name, figure, allowed,
        "passed" if _holds(limit.bound, figure.value, allowed) else "failed",
    )  # fmt: skip


def _allowed(
    limit: Limit, figure: Figure, side: Side, baseline: Side | None
) -> tuple[Number | None, Message | None]:
    """The bound as a number, or the reason why it is unknown."""
    if not limit.relative:
        return limit.number, None
    if baseline is None:
        return None, message("compare.gate.reason.no_baseline")
    before = baseline.figures.get(figure.id)
    if before is None or before.value is None:
        return None, message("compare.reason.not_in_baseline")
    why = why_not_comparable(figure, baseline, side)
    if why is not None:
        return None, why
    share = abs(before.value) / 100 if limit.percent else 1
    return before.value + limit.number * share, None


def _holds(bound: Bound, value: Number, allowed: Number) -> bool:
    if same(value, allowed):
        return True
    return {"max": value < allowed, "min": value > allowed, "equal": False}[bound]


def _fits(pattern: str, name: str) -> bool:
    """Match part by part, so that a star does not match a slash."""
    wanted, parts = pattern.split("/"), name.split("/")
    return len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))
