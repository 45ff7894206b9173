"""A short summary of a run in Markdown, for the page of a CI job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.results import ArmResult, Results
from experiment.report.facts import values
from experiment.report.facts.block_events import counted, has_blocks
from experiment.report.facts.texts import arm_name
from experiment.report.files.experiment_markdown import experiment_markdown
from experiment.report.files.markup import items, plain, table, within
from experiment.report.page.experiment import focus_message
from experiment.text import DASH, Translator
from experiment.text.messages import Message

_ROWS: Mapping[str, Callable[[ArmResult], str | None]] = {
    "term.reserved.name": lambda arm: values.size(_bytes(arm, "reserved")),
    "term.allocated.name": lambda arm: values.size(_bytes(arm, "allocated")),
    "term.live.name": lambda arm: values.size(_bytes(arm, "live")),
    "term.wasted.name": lambda arm: values.size(_bytes(arm, "wasted")),
    "report.compare.share": lambda arm: values.percent(arm.peak.utilisation if arm.peak else None),
    "report.compare.fits": lambda arm: values.count(arm.fits),
    "report.compare.rate": lambda arm: values.rate(arm.tokens_per_s),
    "console.preemptions": lambda arm: values.count(counted(arm, "preemptions")),
}


def markdown(results: Results, lang: str) -> str:
    """Verdict, table of the arms, tokens and notes, in one language; under 50 kB."""
    t = Translator(lang)
    found = results.experiment
    parts = [
        f"## PagedKV Lab\n\n**{_text(t, results.headline)}**",
        "" if results.status == "complete" else plain(t("report.status." + results.status)),
        *(experiment_markdown(t, found) if found else []),
        _focus(t, found) if found else "",
        _table(t, results),
        _tokens(t, results),
        items(t.message(note) for note in results.notes),
        "\n".join(
            f"- {plain(arm_name(t, arm.arm))}: {_text(t, text)}"
            for arm in results.arms
            for text in ([arm.reason] if arm.reason else []) + arm.problems
        ),
    ]
    return within("\n\n".join(part for part in parts if part) + "\n")


def _focus(t: Translator, found: ExperimentResult) -> str:
    """Of which cell the table of the arms is."""
    said = focus_message(found)
    return "" if said is None else _text(t, said)


def _table(t: Translator, results: Results) -> str:
    if not results.arms:
        return ""
    rows = [["", *(arm_name(t, arm.arm) for arm in results.arms)]]
    rows += [[t(label), *(of(arm) or DASH for arm in results.arms)] for label, of in _ROWS.items()]
    unable = not all(has_blocks(arm.arm) for arm in results.arms)
    return table(rows, left=(0,)) + (f"\n\n{plain(t('report.no_blocks'))}" if unable else "")


def _tokens(t: Translator, results: Results) -> str:
    if not results.compared:
        return plain(t("report.tokens.none"))
    if all(one.equal for one in results.compared):
        key = "report.tokens.equal_some" if results.not_compared else "report.tokens.equal"
        return plain(t(key, n=len(results.compared) + 1))
    return "\n".join(
        f"- {plain(arm_name(t, one.arm))}: "
        + plain(t("report.tokens.differ", equal=one.equal_requests, n=one.requests))
        for one in results.compared
        if not one.equal
    )


def _bytes(arm: ArmResult, name: str) -> int | None:
    return arm.bytes_of(getattr(arm.peak, name)) if arm.peak else None


def _text(t: Translator, text: Message) -> str:
    return plain(t.message(text))
