"""Sentences of a finding, from its data.

Tokens/s (requests = 24): paged 312.4, slabs 151.2; 2.07 times (2.01 to 2.11)
└─ figure          └─ cell         └─ sides                   └─ estimate, its interval
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from experiment.analysis.experiment_results import Compared, Finding, Side
from experiment.text.messages import Message, message


def answer(finding: Finding) -> Message:
    """The sentence with the compared values, their estimate, and the reason of the verdict."""
    return sentence(finding) or _told("reason", reason=message("experiments.why.missing"))


def below(finding: Finding) -> list[Message]:
    """What else there is to know, a line each: further comparisons, then notes."""
    lines = (sentence(row) for row in finding.beside)
    return [*(line for line in lines if line is not None), *finding.notes]


def whole(finding: Finding) -> Message:
    """Both as one text."""
    return joined("experiments.sentences", [answer(finding), *below(finding)]) or answer(finding)


def sentence(row: Compared) -> Message | None:
    """A comparison as a sentence; None: it has no values, and no reason for that."""
    parts = [_side(side) for side in row.sides]
    estimate, reason = _estimate(row), row.reason
    if not parts and estimate is None:
        return None if reason is None else _told("reason", reason=reason)
    values = joined("experiments.and" if row.figure else "experiments.found.then", parts)
    for part in (estimate, reason):
        if part is not None:
            values = part if values is None else _told("then", one=values, other=part)
    heads = [head for head in (row.figure, row.at) if head is not None]
    name = _told("at", figure=heads[0], at=heads[1]) if len(heads) > 1 else next(iter(heads), None)
    return _told("line", name=name, values=values)


def joined(key: str, items: Iterable[Message]) -> Message | None:
    """Texts as one, by the text that joins two of them; None: there are none."""
    known = list(items)
    return reduce(lambda one, other: _message(key, one=one, other=other), known) if known else None


def listed(items: Iterable[Message | str], key: str = "experiments.and") -> object:
    """Names or numbers as one part of a text."""
    known = [*map(param, items)] or [""]
    return reduce(lambda one, other: param(_message(key, one=one, other=other)), known)


def param(label: Message | str) -> object:
    """A name as a text takes it for a part of its own."""
    return label.model_dump() if isinstance(label, Message) else label


def _side(side: Side) -> Message:
    spread = {"low": side.low, "high": side.high} if side.low is not None else {}
    key = "side_spread" if spread and side.low != side.high else "side"
    return _told(key, label=side.label, value=side.value, unit=side.unit, **spread)


def _estimate(row: Compared) -> Message | None:
    if row.estimate is None or row.kind in (None, "value"):
        return None
    key = "repeats" if row.kind == "ratio" and (row.n or 0) > 1 else row.kind
    return _told(key, value=row.estimate, low=row.low, high=row.high, n=row.n)


def _told(key: str, **params: Any) -> Message:
    return _message(f"experiments.found.{key}", **params)


def _message(key: str, **params: Any) -> Message:
    """A message whose values that are messages are stored as a record stores them."""
    return message(key, **{name: param(value) for name, value in params.items()})
