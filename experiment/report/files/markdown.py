"""A short summary in Markdown, for the page of a CI job (``GITHUB_STEP_SUMMARY``)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from experiment.analysis.experiment_results import ExperimentResult
from experiment.analysis.metrics import METRICS, SUMMARY
from experiment.analysis.results import Results
from experiment.files.os_errors import os_reason
from experiment.report.facts.arm_figures import figure, has_blocks
from experiment.report.facts.texts import arm_name
from experiment.report.files.experiment_markdown import experiment_markdown
from experiment.report.page.experiment import focus_message
from experiment.text import DASH, Translator, readable
from experiment.text.errors import user_error
from experiment.text.messages import Message

MOST_BYTES = 50_000
# A step's file may be of many runs; GitHub shows none of it where it is longer than this.
MOST_OF_A_STEP = 2**20
_CUT = "\n…\n"
_VARIABLE = "GITHUB_STEP_SUMMARY"
_ESCAPED = str.maketrans(
    {sign: "\\" + sign for sign in "\\`*_[]|#~"} | {sign: f"&#{ord(sign)};" for sign in "<>&\u200b"}
)
# GitHub links addresses, @names and #numbers, unless a zero-width space divides them.
_LINKED = re.compile(r"(?<=[@#])(?=\w)|(?<=:)(?=//)|(?<=www)(?=\.)", re.IGNORECASE)


def markdown(results: Results, lang: str) -> str:
    """Verdict, table of the arms, tokens and notes, in one language; under 50 kB."""
    t = Translator(lang)
    found = results.experiment
    parts = [
        f"## PagedKV Lab\n\n**{_text(t, results.headline)}**",
        "" if results.status == "complete" else plain(t("report.status." + results.status)),
        *(experiment_markdown(t, found, plain) if found else []),
        _focus(t, found) if found else "",
        _table(t, results),
        _tokens(t, results),
        "\n".join(f"- {_text(t, note)}" for note in results.notes),
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


def write_step_summary(text: str) -> Path | None:
    """Append a summary where a CI job asks for one; None where it does not.

    What would make the file of the step too long for the job's page is left out, with a sign: the
    summaries that are there stay, and each run's report has its own.

    Raises:
        OSError: the file cannot be written.
    """
    place = os.environ.get(_VARIABLE)
    if not place:
        return None
    path = Path(place)
    with path.open("a", encoding="utf-8") as file:
        free = MOST_OF_A_STEP - len(_CUT.encode()) - path.stat().st_size
        if len(text.encode()) + 1 <= free:
            file.write(text + "\n")
        elif free >= 0:
            file.write(_CUT)
    return path


def summarise_job(text: str) -> None:
    """The same for a command that has nothing else to lose.

    Raises:
        UserError: the job's file cannot be written.
    """
    try:
        write_step_summary(text)
    except OSError as error:
        path, why = str(error.filename), os_reason(error)
        raise user_error("error.out_unwritable", path=path, why=why) from error


def _table(t: Translator, results: Results) -> str:
    if not results.arms:
        return ""
    rows = [["", *(arm_name(t, arm.arm) for arm in results.arms)]]
    for metric in map(METRICS.__getitem__, SUMMARY):
        figures = (figure(metric, results, arm) or DASH for arm in results.arms)
        rows.append([t.message(metric.label), *figures])
    lines = ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    rule = "| --- |" + " ---: |" * len(results.arms)
    unable = not all(has_blocks(arm.arm) for arm in results.arms)
    below = ["", plain(t("report.no_blocks"))] if unable else []
    return "\n".join([lines[0], rule, *lines[1:], *below])


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


def plain(text: str) -> str:
    """Text as Markdown shows it: foreign text makes no markup, link or mention, breaks no table."""
    line = " ".join(readable(text).split())
    return _LINKED.sub("\u200b", line).translate(_ESCAPED)


def within(text: str) -> str:
    """Cut at the end of a line where it would become too long for :data:`MOST_BYTES`."""
    data = text.encode()
    if len(data) < MOST_BYTES:
        return text
    kept = data[: MOST_BYTES - 10].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1] + _CUT
