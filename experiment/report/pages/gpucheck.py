"""Page of ``gpucheck``: verdict of each part, then every check with its result."""

from __future__ import annotations

from experiment.gpucheck.result import FILE, PAGE, GpuCheck, PartResult, cleaned, result_json
from experiment.report import Reports
from experiment.report.facts.texts import Cells, KeyedText, PageText, date_text
from experiment.report.html.answer import answer_html
from experiment.text import DASH, Translator, format_seconds

_COLUMNS = ("part", "verdict", "seconds")
_CHECK_COLUMNS = ("check", "verdict")
_CHECKED = {True: "passed", False: "failed", None: "not_judged"}
_STYLES = {"fail": "missed", "skipped": "", "pass": ""}


def gpucheck_reports(data: GpuCheck, lang: str) -> Reports:
    """Result and page of a check."""
    return {FILE: result_json(data), PAGE: gpucheck_html(cleaned(data), lang)}


def gpucheck_html(data: GpuCheck, lang: str) -> str:
    """Render the page from the data of ``gpucheck.json``, without private data."""
    return answer_html(lambda t: gpucheck_text(t, data), lang, FILE, data.model_dump(mode="json"))


def gpucheck_text(t: Translator, data: GpuCheck) -> PageText:
    """Texts of the page in one language."""
    device = "gpucheck.about" if data.device_name else "gpucheck.about_unknown"
    return PageText(
        kicker=t("gpucheck.title"),
        headline=t.message(data.headline),
        facts=[
            t(device, device=data.device_name),
            t("gpucheck.about_limit", minutes=data.minutes),
            t("gpucheck.about_program", version=data.program),
        ],
        lines=[about_cpu(t, data)] if data.device == "cpu" else (),
        when=date_text(data.wall_ns, data.utc_offset_s),
        tables=[_parts(t, data), *(_checks(t, part) for part in data.parts if part.checks)],
    )


def about_cpu(t: Translator, data: GpuCheck) -> str:
    """What a check without a GPU says."""
    interpreted = any(part.interpreted for part in data.parts)
    return t("gpucheck.about_interpreted" if interpreted else "gpucheck.about_cpu")


def verdict_text(t: Translator, part: PartResult) -> str:
    """Text of a verdict, with a note on kernels that ran in the interpreter."""
    verdict = t(f"gpucheck.verdict_{part.verdict}")
    return t("gpucheck.verdict_interpreted", verdict=verdict) if part.interpreted else verdict


def _parts(t: Translator, data: GpuCheck) -> Cells:
    rows = []
    for part in data.parts:
        seconds = DASH
        if part.seconds is not None:
            seconds = KeyedText(format_seconds(part.seconds), f"parts[{part.part}].seconds")
        # The reason is in the first cell, the only one with line breaks.
        name = t(f"gpucheck.part_{part.part}") + "\n" + t.message(part.reason)
        rows.append([name, verdict_text(t, part), seconds])
    return Cells(
        t("gpucheck.parts"),
        [t(f"gpucheck.column_{name}") for name in _COLUMNS],
        rows,
        left=(0, 1),
        styles=[_STYLES[part.verdict] for part in data.parts],
    )


def _checks(t: Translator, part: PartResult) -> Cells:
    rows = [
        [
            KeyedText(t.message(each.text), f"parts[{part.part}].checks[{each.id}].text"),
            t(f"gpucheck.check_{_CHECKED[each.passed]}"),
        ]
        for each in part.checks
    ]
    return Cells(
        t(f"gpucheck.part_{part.part}"),
        [t(f"gpucheck.column_{name}") for name in _CHECK_COLUMNS],
        rows,
        left=(0, 1),
        styles=["missed" if each.passed is False else "" for each in part.checks],
    )
