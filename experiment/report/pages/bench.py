"""Page of a benchmark, with the tables of the console."""

from __future__ import annotations

from statistics import median

from experiment.bench.data import FILE, BenchData
from experiment.bench.summary import lines
from experiment.report import Reports
from experiment.report.facts.bench import all_tables, basis, conditions
from experiment.report.facts.texts import PageText
from experiment.report.html.answer import answer_html
from experiment.text import Translator
from experiment.text.messages import Message, message

PAGE = "bench.html"


def bench_reports(data: BenchData, lang: str) -> Reports:
    """The page of a benchmark."""
    return {PAGE: bench_html(data, lang)}


def bench_html(data: BenchData, lang: str) -> str:
    """Render the page of a benchmark."""
    return answer_html(lambda t: bench_text(t, data), lang, FILE, data.model_dump(mode="json"))


def counted(data: BenchData) -> Message:
    """Number of measured rounds, workloads and arms."""
    return message(
        "bench.counted", arms=len({row.arm for row in data.rows}),
        workloads=len({row.workload for row in data.rows}), rounds=len(data.rounds),
    )  # fmt: skip


def _headline(data: BenchData) -> Message:
    """How many times as fast as slabs the paged engine is, or the number of rounds."""
    for line in lines(data.rows):
        if line.arm == "slabs" and line.factors:
            factor = median(line.factors)
            return message("bench.headline", workload=line.workload, factor=factor)
    return counted(data)


def bench_text(t: Translator, data: BenchData) -> PageText:
    """Texts of the page in one language."""
    return PageText(
        kicker=t("bench.title"),
        headline=t.message(_headline(data)),
        lines=[t.message(counted(data))],
        facts=basis(t, data),
        tables=all_tables(t, data),
        lists={t("bench.conditions"): conditions(t, data)},
    )
