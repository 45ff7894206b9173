"""The limits of a gate as a table in Markdown, for the page of a CI job."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.analysis.experiment_results import Unit
from experiment.compare.gate import Judged, tally
from experiment.report.facts.compare import exact
from experiment.report.files.markdown import plain
from experiment.text import Translator

_COLUMNS = ("figure", "limit", "allowed", "value", "verdict")


def gate_markdown(t: Translator, judged: Sequence[Judged]) -> str:
    """Each limit with what was found and its verdict; broken ones first."""
    rows = [[t(f"compare.gate.column_{name}") for name in _COLUMNS]]
    rows += [_row(t, one) for one in sorted(judged, key=lambda one: one.verdict == "passed")]
    lines = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    bad, limits = tally(judged)
    held = t("compare.gate.held", n=limits)
    text = t("compare.gate.broken", n=bad, of=limits) if bad else held
    table = "\n".join([lines[0], "| --- | --- | ---: | ---: | --- |", *lines[1:]])
    return f"### {plain(t('compare.gate.title'))}\n\n{plain(text)}\n\n{table}\n"


def _row(t: Translator, one: Judged) -> list[str]:
    unit: Unit = one.figure.unit if one.figure else "count"
    verdict = t(f"compare.gate.{one.verdict}")
    if one.reason is not None:
        verdict = t("compare.gate.because", verdict=verdict, reason=t.message(one.reason))
    return [
        one.id,
        t(f"compare.gate.bound_{one.limit.bound}", value=one.limit.text),
        exact(one.allowed, unit),
        exact(one.figure.value if one.figure else None, unit),
        verdict,
    ]
