"""The claims as a page: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiment.experiments.claims import Judged, Part
from experiment.i18n import DASH, Translator
from experiment.messages import Message, message
from experiment.report.bench_tables import Cells
from experiment.report.tables_page import Told, tables_html

PAGE = "claims.html"
_COLUMNS = ("claim", "here", "verdict", "from")


def claims_html(judged: Sequence[Judged], sizes: Mapping[str, str], data: Any, lang: str) -> str:
    """The page; ``sizes`` are those of the experiments that were run, ``data`` is claims.json."""
    return tables_html(lambda t: _told(t, judged, sizes), lang, "claims.json", data)


def counted(verdicts: Sequence[str]) -> Message:
    """How many claims came out how."""
    counts = Counter(verdicts)
    names = ("shown", "not_shown", "untested")
    return message("claims.counted", n=len(verdicts), **{name: counts[name] for name in names})


def figure(t: Translator, one: Judged) -> str:
    """The figure that was found here; of a time, how far its repeats lie apart below it."""
    if one.seen is None:
        return DASH
    kind, seen = one.claim.kind, one.seen
    text = _written(t, kind, seen.value)
    if seen.low is None or seen.high is None:
        return text
    low, high = (_written(t, kind, value) for value in (seen.low, seen.high))
    return text + "\n" + t("experiments.span", low=low, high=high)


def details(t: Translator, one: Judged) -> list[str]:
    """What the figure is made of, or why there is none: a line each."""
    lines = [_part(t, one, part) for part in one.seen.parts] if one.seen else []
    return [*lines, *([t.message(one.reason)] if one.reason else [])]


def _part(t: Translator, one: Judged, part: Part) -> str:
    kind = one.claim.kind
    figures: dict[str, Any] = {"value": _written(t, kind, part.value), "of": part.of}
    if part.least is not None:
        figures["least"] = _written(t, kind, part.least)
    return t(f"claims.part.{part.name}", **figures)


def _written(t: Translator, kind: str, value: float) -> str:
    return t(f"claims.figure_{kind}", value=int(value) if kind == "count" else value)


def _told(t: Translator, judged: Sequence[Judged], sizes: Mapping[str, str]) -> Told:
    rows = [
        [
            "\n".join([t(f"claims.{one.claim.name}"), *details(t, one)]),
            figure(t, one),
            t(f"claims.verdict_{one.verdict}"),
            one.claim.experiment,
        ]
        for one in judged
    ]
    styles = ["bold" if one.verdict == "shown" else "" for one in judged]
    header = [t(f"claims.column_{name}") for name in _COLUMNS]
    notes = [t("claims.note"), *([t("claims.quick")] if "quick" in sizes.values() else [])]
    return Told(
        kicker=t("claims.title"),
        headline=t.message(counted([one.verdict for one in judged])),
        facts=notes,
        tables=[Cells(t("claims.title"), header, rows, left=(0, 2, 3), styles=styles)],
    )
