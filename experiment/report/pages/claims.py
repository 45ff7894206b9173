"""The claims as a page: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from experiment.experiments.claims import Judged, Part
from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.keyed import Said
from experiment.report.facts.sourced import Piece, Sourced, in_lines, told
from experiment.report.pages.tables import Told, tables_html
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

PAGE = "claims.html"
_COLUMNS = ("claim", "here", "verdict", "from")


def claims_html(
    judged: Sequence[Judged],
    notes: Sequence[Message],
    runs: Mapping[str, str],
    data: Any,
    lang: str,
) -> str:
    """The page.

    Args:
        notes: on the runs that the claims are judged by.
        runs: directories, beside the page's own, of those that have a report.
        data: claims.json.
    """
    return tables_html(lambda t: claims_told(t, judged, notes, runs), lang, "claims.json", data)


def counted(verdicts: Sequence[str]) -> Message:
    """How many claims came out how."""
    counts = Counter(verdicts)
    names = ("shown", "not_shown", "untested")
    return message("claims.counted", n=len(verdicts), **{name: counts[name] for name in names})


def figure(t: Translator, one: Judged) -> str:
    """The figure that was found here; of a time, how far its repeats lie apart below it."""
    if one.seen is None:
        return DASH
    kind, seen, at = one.claim.kind, one.seen, f"claims[{one.claim.name}]"
    text = _figure(t, kind, seen.value, f"{at}.value")
    if seen.low is None or seen.high is None:
        return text
    low, high = (_said(kind, value).model_dump() for value in (seen.low, seen.high))
    key = f"low=#claims.figure_{kind} {at}.low; high=#claims.figure_{kind} {at}.high"
    span = message("experiments.span", low=low, high=high)
    return in_lines(text, told(t, Said(span, key, span.key)))


def details(t: Translator, one: Judged) -> list[str]:
    """What the figure is made of, or why there is none: a line each."""
    parts = one.seen.parts if one.seen else ()
    lines = [_part(t, one, part, place) for place, part in enumerate(parts)]
    at = f"claims[{one.claim.name}].reason"
    return [*lines, *([told(t, Said(one.reason, at, "message"))] if one.reason else [])]


def _part(t: Translator, one: Judged, part: Part, place: int) -> str:
    kind, at = one.claim.kind, f"claims[{one.claim.name}].parts.{place}"
    figures: dict[str, Any] = {"value": _said(kind, part.value).model_dump(), "of": part.of}
    keys = [f"value=#claims.figure_{kind} {at}.value", f"of={at}.of"]
    if part.least is not None:
        figures["least"] = _said(kind, part.least).model_dump()
        keys.append(f"least=#claims.figure_{kind} {at}.least")
    text = message(f"claims.part.{part.name}", **figures)
    return told(t, Said(text, "; ".join(keys), text.key))


def _said(kind: str, value: float) -> Message:
    """A count comes as a float, and is written as the whole number that it is."""
    whole = kind == "count" and float(value).is_integer()
    return message(f"claims.figure_{kind}", value=int(value) if whole else value)


def _figure(t: Translator, kind: str, value: float, at: str) -> str:
    text = _said(kind, value)
    return told(t, Said(text, f"value={at}", text.key))


def _report(experiment: str, run: str | None) -> str:
    """The experiment's name; where it was run, it leads to the report that lies beside the page."""
    return Sourced(Piece(experiment, href=f"{quote(run)}/report.html" if run else ""))


def claims_told(
    t: Translator, judged: Sequence[Judged], notes: Sequence[Message], runs: Mapping[str, str]
) -> Told:
    """What the page says in one language."""
    rows = [
        [
            in_lines(t(f"claims.{one.claim.name}"), *details(t, one)),
            figure(t, one),
            t(f"claims.verdict_{one.verdict}"),
            _report(one.claim.experiment, runs.get(one.claim.experiment)),
        ]
        for one in judged
    ]
    styles = [str(one.verdict) for one in judged]
    header = [t(f"claims.column_{name}") for name in _COLUMNS]
    return Told(
        kicker=t("claims.title"),
        headline=told(t, Said(counted([one.verdict for one in judged]), "headline", "message")),
        facts=[t("claims.note"), *map(t.message, notes)],
        tables=[Cells(t("claims.each"), header, rows, left=(0, 2, 3), styles=styles)],
    )
