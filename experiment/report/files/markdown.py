"""Short summary of a run in Markdown, for a CI job."""

from __future__ import annotations

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.metrics import METRICS, SHOWN_IN_MARKDOWN
from experiment.analysis.results import Results
from experiment.report.facts.arm_figures import figure, has_blocks
from experiment.report.facts.texts import arm_name
from experiment.report.files.experiment_markdown import experiment_markdown
from experiment.report.files.markup import items, plain, table, within
from experiment.report.page.experiment import focus_message
from experiment.text import DASH, Translator
from experiment.text.messages import Message


def markdown(results: Results, lang: str) -> str:
    """Verdict, table of arms, tokens and notes in one language; under 50 kB."""
    t = Translator(lang)
    experiment = results.experiment
    parts = [
        f"## PagedKV Lab\n\n**{_text(t, results.headline)}**",
        "" if results.status == "complete" else plain(t("report.status." + results.status)),
        *(experiment_markdown(t, experiment) if experiment else []),
        _focus(t, experiment) if experiment else "",
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


def _focus(t: Translator, experiment: ExperimentResult) -> str:
    """The cell of the table of arms."""
    said = focus_message(experiment)
    return "" if said is None else _text(t, said)


def _table(t: Translator, results: Results) -> str:
    if not results.arms:
        return ""
    rows = [["", *(arm_name(t, arm.arm) for arm in results.arms)]]
    for metric in map(METRICS.__getitem__, SHOWN_IN_MARKDOWN):
        figures = (figure(metric, results, arm) or DASH for arm in results.arms)
        rows.append([t.message(metric.label), *figures])
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


def _text(t: Translator, text: Message) -> str:
    return plain(t.message(text))
