"""``gpucheck`` as a page: the verdict of each part, then every check with what it saw."""

from __future__ import annotations

from typing import Any

from experiment.gpucheck.result import FILE, GpuCheck, PartResult
from experiment.report.facts.bench_tables import Cells
from experiment.report.facts.sourced import Teller, in_lines
from experiment.report.pages.tables import Told, tables_html
from experiment.text import DASH, Translator

_COLUMNS = ("part", "verdict", "seconds")
_CHECK_COLUMNS = ("check", "verdict")
_CHECKED = {True: "passed", False: "failed", None: "not_judged"}
_STYLES = {"fail": "bold red", "skipped": "dim", "pass": ""}


def gpucheck_html(data: GpuCheck, lang: str) -> str:
    """The page of what ``gpucheck.json`` holds; ``data`` is cleaned."""
    return tables_html(lambda t: gpucheck_told(t, data), lang, FILE, gpucheck_document(data))


def gpucheck_document(data: GpuCheck) -> dict[str, Any]:
    """What key paths of the page begin in: gpucheck.json, and the sentence that is made of it."""
    return {**data.model_dump(mode="json"), "headline": data.headline.model_dump()}


def gpucheck_told(t: Translator, data: GpuCheck) -> Told:
    """What the page says in one language."""
    k = Teller(t, gpucheck_document(data))
    device = "gpucheck.about" if data.device_name else "gpucheck.about_unknown"
    paths = {"device": "device_name"} if data.device_name else {}
    return Told(
        kicker=t("gpucheck.title"),
        headline=k.stored("headline"),
        facts=[k.said(device, **paths), k.said("gpucheck.about_limit", minutes="minutes")],
        tables=[_parts(k, data), *(_checks(k, part) for part in data.parts if part.checks)],
    )


def verdict_text(t: Translator, part: PartResult) -> str:
    """A verdict in words; of kernels that ran in the interpreter, that they did."""
    verdict = t(f"gpucheck.verdict_{part.verdict}")
    return t("gpucheck.verdict_interpreted", verdict=verdict) if part.interpreted else verdict


def _parts(k: Teller, data: GpuCheck) -> Cells:
    t = k.t
    rows = []
    for part in data.parts:
        at = f"parts[{part.part}]"
        seconds = DASH if part.seconds is None else k.number(f"{at}.seconds", "seconds")
        # The reason in the first cell, which alone is broken into lines.
        name = in_lines(t(f"gpucheck.part_{part.part}"), k.stored(f"{at}.reason"))
        rows.append([name, verdict_text(t, part), seconds])
    return Cells(
        t("gpucheck.parts"),
        [t(f"gpucheck.column_{name}") for name in _COLUMNS],
        rows,
        left=(0, 1),
        styles=[_STYLES[part.verdict] for part in data.parts],
    )


def _checks(k: Teller, part: PartResult) -> Cells:
    t = k.t
    rows = [
        [
            k.stored(f"parts[{part.part}].checks[{each.id}].text"),
            t(f"gpucheck.check_{_CHECKED[each.passed]}"),
        ]
        for each in part.checks
    ]
    return Cells(
        t(f"gpucheck.part_{part.part}"),
        [t(f"gpucheck.column_{name}") for name in _CHECK_COLUMNS],
        rows,
        left=(0, 1),
        styles=["bold red" if each.passed is False else "" for each in part.checks],
    )
