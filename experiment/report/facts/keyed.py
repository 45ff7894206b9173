"""Numbers of the page with the key path that each came from.

    results.arms[paged].peak.live                        a value of run.json
    steps[paged][12].live                                a count of the ledger after a logged step
    median shares[paged].*                               of live ÷ allocated over those steps
    moments[paged][12].holders[3].written                what the player shows after a step, and
    happened[paged][12:1].counts.allocated               what the one step that ends there did;
                                                         see player/moments.py
    results.arms[paged].peak.live * model.slot_bytes     a product, quotient, sum or difference
    median results.arms[paged].requests.*.latency_s      of a list: sum, min, max, median,
                                                         length; p1 to p100, where enough

    rows[workload:A,arm:paged].*.generate_s              of the entries of a list that have these

A name in brackets picks the entry of a list by its ``arm``, ``channel``, ``claim``, ``part``,
``request``, ``id`` or ``policy``, a number behind a point by its place. The page carries the path
in ``data-key`` and how the value is written in ``data-as``, so that whoever doubts a number can
look it up; a test does that for all of them.

A sentence names its numbers, ``n=path; rate=#ranged.1 path``: behind ``#`` stands how the number is
written where the sentence does not say it; ``@key`` is a text without numbers, ``'`` begins a name.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from experiment.analysis.percentiles import percentile
from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.results import Results
from experiment.events import ModelPrepared, RunStarted, WorkloadReady
from experiment.record.log import Record
from experiment.replay.step_rows import StepRow
from experiment.report.facts import values
from experiment.report.facts.lifelines import lifelines
from experiment.report.facts.player_moments import happenings, moments, pools
from experiment.report.facts.series import Series
from experiment.report.facts.simulation_figures import Unit
from experiment.report.facts.simulation_values import written
from experiment.report.facts.tables import wall_clock
from experiment.text import format_bytes, format_seconds
from experiment.text.messages import Message, message

_NAMES = ("arm", "channel", "claim", "part", "request", "id", "policy")
_SEGMENT = re.compile(r"([^.\[\]]+)|\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Said:
    """A text with the key of its number; ``kind`` is how it is written, or a message's key.

    A message names its numbers: ``key`` is then ``name=path; name=path``.
    """

    text: str | Message
    key: str
    kind: str


WRITERS: Mapping[str, Callable[[Any], str | None]] = {
    "count": values.count,
    "bytes": lambda value: format_bytes(round(value)),
    "signed_bytes": values.signed_size,
    "percent": values.percent,
    "decimal": values.decimal,
    "seconds": format_seconds,
    "rate": values.rate,
    "times": lambda value: f"{value:,.2f} ×",
    "second": lambda value: f"{value:.3f}",
    "text": str,
    "shared": lambda value: f"×{value}",
    "setting": values.setting,
    "whole_percent": lambda value: f"{value * 100:,.0f} %",
    "general": lambda value: f"{value:.6g}",
    **{f"unit.{unit}": partial(written, unit=unit) for unit in get_args(Unit)},
    **{f"ranged.{digits}": partial(values.ranged, digits=digits) for digits in range(4)},
    "ranged.2:s": partial(values.ranged, digits=2, unit=" s"),
    "ranged_ms": partial(values.ranged, digits=1, unit=" ms", times=1000),  # of seconds
    "ranged_percent": partial(values.ranged, digits=0, unit=" %", times=100),
    **{f"fixed.{digits}": partial(values.fixed, digits=digits) for digits in range(4)},
    **{
        f"fixed.{digits}:{unit}": partial(values.fixed, digits=digits, unit=f" {unit}")
        for digits in range(4)
        for unit in ("s", "ms", "%", "B", "GB", "GiB")
    },
}
MOMENTS = {"clock": "%H:%M:%S.%f", "date": "%Y-%m-%d %H:%M"}
_OF_LISTS: Mapping[str, Callable[[Sequence[Any]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "median": statistics.median,
    "length": len,
}
_PERCENTILE = re.compile(r"p(\d+)")


class Paths:
    """Looks key paths up in a document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def value(self, expression: str) -> Any:
        """What the expression comes to; None where a part of it is not known."""
        return evaluate(expression, self.document)

    def number(self, expression: str, kind: str) -> Said | None:
        """The value, written; None where it is unknown."""
        value = self.value(expression)
        text = None if value is None else self._written(value, kind)
        return None if text is None else Said(text, expression, kind)

    def _written(self, value: Any, kind: str) -> str | None:
        return WRITERS[kind](value)

    def said(self, key: str, /, **expressions: str) -> Said:
        """A message whose numbers are looked up; see the description of the module."""
        numbers = {name: self._named(each) for name, each in expressions.items()}
        where = "; ".join(f"{name}={path}" for name, path in expressions.items())
        return Said(message(key, **numbers), where, key)

    def _named(self, expression: str) -> Any:
        """What stands in a sentence for an expression: a value, a message or a name."""
        sign, rest = expression[:1], expression[1:]
        if sign == "@":
            return message(rest)
        if sign == "'":
            return rest
        if sign != "#":
            return self.value(expression)
        kind, _, path = rest.partition(" ")
        value = self.value(path)
        if kind in WRITERS:
            return None if value is None else WRITERS[kind](value)
        return message(kind, value=value)

    def stored(self, path: str) -> Said | None:
        """A message that run.json holds."""
        found = self.value(path)
        return None if found is None else Said(Message.model_validate(found), path, "message")


class Keys(Paths):
    """Looks key paths up in what a run recorded and what was concluded from it."""

    def __init__(self, record: Record, results: Results, series: Sequence[Series]) -> None:
        super().__init__(document(record, results, series))
        self._started = record.started
        self._places: dict[str, str] | None = None

    def because(self, reason: Message) -> Message | Said:
        """A reason with where run.json has it; one without a number in it as it is."""
        if not reason.params:
            return reason
        if self._places is None:
            found = messages_of(self.document["results"], "results")
            self._places = {_same(told): path for path, told in reversed(list(found))}
        path = self._places.get(_same(reason.model_dump(mode="json")))
        return reason if path is None else Said(reason, path, "message")

    def _written(self, value: Any, kind: str) -> str | None:
        if kind in MOMENTS:
            return moment(self._started, value, kind)
        return super()._written(value, kind)


def document(record: Record, results: Results, series: Sequence[Series]) -> dict[str, Any]:
    """What key paths begin in."""
    model, workload = record.first(ModelPrepared), record.first(WorkloadReady)
    slot = {"slot_bytes": model.slot_bytes} if model else {}
    return {
        "run": record.started.model_dump(mode="json"),
        "config": resolved_config(record),
        "results": results.model_dump(mode="json"),
        "model": model.model_dump(mode="json") | slot if model else None,
        "workload": workload.model_dump(mode="json") if workload else None,
        "steps": {one.arm: {row.step: row for row in one.rows} for one in series},
        "shares": {one.arm: [row.utilisation for row in one.rows if row.running] for one in series},
        "pools": pools(record),
        "moments": moments(record),
        "happened": happenings(record),
        "begun": {
            one.arm: {row.step: at for at, row in zip(one.edges, one.rows, strict=False)}
            for one in series
        },
        "lifelines": {
            one.arm: {line.request: line.figures() for line in one.lines}
            for one in lifelines(record)
        },
    }


def messages_of(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every message of a document, with its path."""
    if isinstance(value, Mapping):
        if value.keys() == {"key", "params"}:
            yield path, value
        for name, each in value.items():
            yield from messages_of(each, f"{path}[{name}]" if "." in name else f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from messages_of(each, f"{path}.{place}")


def _same(told: Mapping[str, Any]) -> str:
    """Equal for equal messages."""
    return json.dumps(told, sort_keys=True)


def moment(started: RunStarted, t_ns: int, kind: str) -> str:
    """A monotonic moment on the clock of the run's place; see :data:`MOMENTS`."""
    text = wall_clock(started, t_ns).strftime(MOMENTS[kind])
    return text[:-3] if kind == "clock" else text


def evaluate(expression: str, document: Any) -> Any:
    """See the module's description. Products bind before sums; a quotient by 0 is unknown."""
    total: Any = None
    for sign, term in _parts(expression, " + ", " - "):
        value = _product(term, document)
        if value is None:
            return None
        total = value if total is None else total + value if sign == " + " else total - value
    # Slots lie in run.json as 2048.0: a whole number is written as one.
    return int(total) if isinstance(total, float) and total.is_integer() else total


def _product(term: str, document: Any) -> Any:
    product: Any = None
    for sign, factor in _parts(term, " * ", " / "):
        value = _factor(factor, document)
        if value is None or (sign == " / " and not value):
            return None
        if product is None:
            product = value
        else:
            product = product * value if sign == " * " else product / value
    return product


def _factor(factor: str, document: Any) -> Any:
    """A path, or what becomes of the known values of a list."""
    name, _, path = factor.partition(" ")
    if not path:
        return lookup(factor, document)
    known = [value for value in lookup(path, document) or () if value is not None]
    return _of_list(name, known) if known else None


def _of_list(name: str, known: Sequence[Any]) -> Any:
    """None for a percentile of too few; see :mod:`experiment.analysis.percentiles`."""
    percent = _PERCENTILE.fullmatch(name)
    return _OF_LISTS[name](known) if percent is None else percentile(known, int(percent[1]))


def _parts(text: str, first: str, second: str) -> list[tuple[str, str]]:
    """Pieces of a text between two signs, each with the sign before it."""
    pieces = re.split(f"({re.escape(first)}|{re.escape(second)})", text)
    return [(first, pieces[0]), *zip(pieces[1::2], pieces[2::2], strict=True)]


def lookup(path: str, document: Any) -> Any:
    """The value at a path, a list where it has a star; None where there is nothing."""
    if path.isdigit():
        return int(path)
    found = [document]
    many = False
    for name, bracket in _SEGMENT.findall(path):
        if name == "*":
            found = [entry for value in found for entry in _entries(value)]
            many = True
        else:
            found = [_entry(v, name) if name else _named(v, bracket) for v in found]
    return found if many else found[0]


def _entries(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value or ()


def _entry(value: Any, name: str) -> Any:
    """A field, or the entry of a list by its place."""
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(value, StepRow):
        return getattr(value, name, None)
    if isinstance(value, list | tuple) and name.isdigit() and int(name) < len(value):
        return value[int(name)]
    return None


def _named(value: Any, name: str) -> Any:
    """The entry of a list or table with this name; of ``a:1,b:2`` a list of all that have these."""
    if isinstance(value, Mapping):
        return value.get(name, value.get(int(name)) if name.isdigit() else None)
    for entry in value or ():
        if isinstance(entry, Mapping) and any(str(entry.get(n)) == name for n in _NAMES):
            return entry
    wanted = [each.partition(":") for each in name.split(",")]
    if not all(sign for _, sign, _ in wanted):
        return None
    return [
        entry for entry in value or ()
        if isinstance(entry, Mapping) and all(str(entry.get(k)) == v for k, _, v in wanted)
    ]  # fmt: skip
