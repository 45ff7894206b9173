"""A benchmark as a page: the tables that the console shows."""

from __future__ import annotations

from experiment.bench.data import FILE, BenchData
from experiment.report import Reports
from experiment.report.facts.bench import basis, conditions
from experiment.report.facts.bench_tables import all_tables
from experiment.report.pages.tables import Told, tables_html
from experiment.text import Translator
from experiment.text.messages import Message, message

PAGE = "bench.html"


def bench_reports(data: BenchData, lang: str) -> Reports:
    """The page beside the data of a benchmark."""
    return {PAGE: bench_html(data, lang)}


def bench_html(data: BenchData, lang: str) -> str:
    """The page of a benchmark."""
    return tables_html(lambda t: _told(t, data), lang, FILE, data.model_dump(mode="json"))


def counted(data: BenchData) -> Message:
    """How much was measured."""
    return message(
        "bench.counted", arms=len({row.arm for row in data.rows}),
        workloads=len({row.workload for row in data.rows}), rounds=len(data.rounds),
    )  # fmt: skip


def _told(t: Translator, data: BenchData) -> Told:
    return Told(
        kicker=t("bench.title"),
        headline=t.message(counted(data)),
        facts=basis(t, data),
        tables=all_tables(t, data),
        lists={t("bench.conditions"): conditions(t, data)},
    )
