"""The claims as a page: what is said, the figure here, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from experiment.experiments.claims import Judged
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
    """The figure that was found here."""
    if one.value is None:
        return DASH
    value = int(one.value) if one.claim.kind == "count" else one.value
    return t(f"claims.figure_{one.claim.kind}", value=value)


def _told(t: Translator, judged: Sequence[Judged], sizes: Mapping[str, str]) -> Told:
    rows = [
        [
            t(f"claims.{one.claim.name}"),
            figure(t, one),
            t(f"claims.verdict_{one.verdict}"),
            one.claim.experiment or DASH,
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
