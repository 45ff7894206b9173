"""Page of the claims: claim, measured figure, verdict."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args
from urllib.parse import quote

from experiment.analysis.experiment_results import Verdict
from experiment.experiments.claims import Judged, Part
from experiment.report import Reports
from experiment.report.facts.texts import Cells, KeyedText, PageText
from experiment.report.facts.values import whole
from experiment.report.html.answer import answer_html
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

PAGE = "claims.html"
_COLUMNS = ("claim", "here", "verdict", "from")


def claims_reports(
    judged: Sequence[Judged],
    notes: Sequence[Message],
    runs: Mapping[str, str],
    data: Any,
    lang: str,
) -> Reports:
    """Data and page of the claims; arguments as of :func:`claims_html`."""
    return {
        "claims.json": json.dumps(data, indent=1) + "\n",
        PAGE: claims_html(judged, notes, runs, data, lang),
    }


def claims_html(
    judged: Sequence[Judged],
    notes: Sequence[Message],
    runs: Mapping[str, str],
    data: Any,
    lang: str,
) -> str:
    """Render the page.

    Args:
        judged: verdicts of the claims.
        notes: on the runs of the claims.
        runs: sibling directories of runs with a report.
        data: claims.json.
    """
    return answer_html(lambda t: claims_text(t, judged, notes, runs), lang, "claims.json", data)


def counted(verdicts: Iterable[str]) -> Message:
    """Number of claims by verdict."""
    counts = dict.fromkeys(get_args(Verdict), 0) | Counter(verdicts)
    return message("claims.counted", n=sum(counts.values()), **counts)


def _figure(t: Translator, one: Judged) -> str:
    """The measured figure; a time with the range of its repeats below."""
    if one.seen is None:
        return DASH
    kind, seen = one.claim.kind, one.seen
    text = _written(t, kind, seen.value)
    if seen.low is not None and seen.high is not None:
        span = {"low": _written(t, kind, seen.low), "high": _written(t, kind, seen.high)}
        text += "\n" + t("experiments.span", **span)
    return KeyedText(text, f"claims[{one.claim.name}].value")


def _part(t: Translator, kind: str, part: Part) -> str:
    figures: dict[str, Any] = {"value": _written(t, kind, part.value), "of": part.of}
    if part.least is not None:
        figures["least"] = _written(t, kind, part.least)
    return t(f"claims.part.{part.name}", **figures)


def _written(t: Translator, kind: str, value: float) -> str:
    """Write a value; counts are written as integers."""
    return t(f"claims.figure_{kind}", value=whole(value) if kind == "count" else value)


def claims_text(
    t: Translator, judged: Sequence[Judged], notes: Sequence[Message], runs: Mapping[str, str]
) -> PageText:
    """Texts of the page in one language."""
    # Links to the reports of the experiments.
    reports = {name: f"{quote(run)}/report.html" for name, run in runs.items()}
    return PageText(
        kicker=t("claims.title"),
        headline=t.message(counted(one.verdict for one in judged)),
        facts=[t("claims.note"), *map(t.message, notes)],
        tables=[replace(claim_cells(t, judged), links=reports)],
    )


def claim_cells(t: Translator, judged: Sequence[Judged]) -> Cells:
    """A row for each claim, styled by its verdict, with the parts of its figure."""
    rows = []
    for one in judged:
        claim, parts = one.claim, one.seen.parts if one.seen else ()
        lines = [t(f"claims.{claim.name}"), *(_part(t, claim.kind, part) for part in parts)]
        lines += [t.message(one.reason)] if one.reason else []
        verdict = t(f"verdict.{one.verdict}")
        rows.append(["\n".join(lines), _figure(t, one), verdict, claim.experiment])
    header = [t(f"claims.column_{name}") for name in _COLUMNS]
    styles = [str(one.verdict) for one in judged]
    return Cells(t("claims.each"), header, rows, left=(0, 2, 3), styles=styles)
