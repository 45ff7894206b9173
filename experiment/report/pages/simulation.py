"""Page of a simulation: self-contained, in both languages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from experiment.analysis.experiment_results import Unit
from experiment.analysis.results import Preempting
from experiment.record.simulation import SIM_FILE
from experiment.report import Reports
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.simulation import (
    fact_lines,
    limit_facts,
    memory_facts,
    refusals,
    trace_facts,
)
from experiment.report.facts.simulation_cells import (
    PolicyCell,
    Sweep,
    brief_cells,
    cells_of,
    figure_cells,
    headline,
    sweep_cells,
    sweeps_of,
    tables_of,
)
from experiment.report.facts.simulation_figures import GROUPS, policy_of, rounding_note
from experiment.report.facts.texts import Cells, KeyedText, PageText, date_text, keyed_notes
from experiment.report.facts.values import written
from experiment.report.html import simulation_charts as charts
from experiment.report.html.answer import answer_html
from experiment.report.html.charts import both_widths
from experiment.report.html.embed import packed_tables
from experiment.report.html.lines import LineChart, figure, line_chart, line_swatch
from experiment.report.html.svg import patterns, swatch
from experiment.simulate.policies import policy_message
from experiment.text import DASH, Translator
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
_TERMS = (
    "slot", "block", "reserved", "allocated", "live", "wasted", "unwritten",
    "padding", "finished", "rounding", "cached", "hole", "watermark", "free",
)  # fmt: skip
_LIMITS = ("latency", "cache", "first_token")
_SUBJECT = ("trace", "lengths", "arrivals", "model", "gpu", "budget", "max_length")


def simulation_reports(data: Data, lang: str) -> Reports:
    """Page and tables of a simulation; ``lang`` is the page's initial language."""
    tables = tables_of(data)
    page = answer_html(
        lambda t: _page_text(t, data), lang, SIM_FILE, _without_series(data),
        packed_tables(tables), lambda b: _charts(b, data), command=data["command"],
    )  # fmt: skip
    return {"report.html": page, **tables}


def _without_series(data: Data) -> Data:
    cells = [dict(cell) for cell in data["cells"]]
    for cell in cells:
        if cell["result"]:
            cell["result"] = {k: v for k, v in cell["result"].items() if k != "series"}
    return {**data, "cells": cells}


def _page_text(t: Translator, data: Data) -> PageText:
    cells = cells_of(data)
    rounding = rounding_note(cell.policy for cell in cells)
    facts = {label.key.rpartition(".")[2]: (label, value)
             for label, value in (*trace_facts(data), *memory_facts(data))}  # fmt: skip
    policies = ((cell.policy, t.message(policy_message(cell.policy))) for cell in cells)
    terms = (
        (t(f"term.{name}.name"), t(f"term.{name}.text", slot=data["setup"]["slot_bytes"]))
        for name in _TERMS
    )
    return PageText(
        kicker=t("sim.page.question"),
        when=date_text(data["wall_ns"], data["utc_offset_s"]),
        headline=t.message(headline(data)),
        alarms=_alarms(t, data, cells),
        facts=[
            " · ".join(fact_lines(t, [facts[name] for name in _SUBJECT if name in facts])),
            *([t.message(rounding)] if rounding else []),
        ],
        notes=[
            *keyed_notes(t, map(Message.model_validate, data["notes"]), "notes"),
            *([t("sim.interrupted")] if data["interrupted"] else []),
        ],
        tables=_tables(t, data, cells),
        lists={
            **_preempting(t, data),
            t("sim.page.trace.title"): fact_lines(t, trace_facts(data)),
            t("sim.page.memory.title"): fact_lines(t, memory_facts(data)),
            t("section.sim_limits"): fact_lines(t, limit_facts(data)),
            t("sweep.policies"): _labelled(t, policies),
            t("report.terms.title"): _labelled(t, terms),
            t("sim.page.words.limits"): [t(f"sim.limit.{name}") for name in _LIMITS],
        },
    )


def _labelled(t: Translator, texts: Iterable[tuple[str, str]]) -> list[str]:
    return [t("console.problem", arm=name, text=text) for name, text in texts]


def _alarms(t: Translator, data: Data, cells: Sequence[PolicyCell]) -> list[str]:
    """Policies without a result, or that refused requests."""
    failed = [
        KeyedText(t("console.problem", arm=cell.policy, text=t.message(cell.error)),
                  f"cells.{place}.error")
        for place, cell in enumerate(cells)
        if cell.error is not None
    ]  # fmt: skip
    refused = (
        t("console.problem", arm=policy, text=t.message(text)) for policy, text in refusals(data)
    )
    return [*failed, *refused]


def _preempting(t: Translator, data: Data) -> dict[str, list[str]]:
    """Why policies preempted requests, and remedies."""
    lines: list[str] = []
    for place, each in enumerate(data.get("preempting", ())):
        why, path = Preempting.model_validate(each["why"]), f"preempting.{place}.why"
        text = t("console.problem", arm=each["policy"], text=t.message(why.text))
        lines.append(KeyedText(text, f"{path}.text"))
        remedies = {f"remedies.{n}.text": one.text for n, one in enumerate(why.remedies)}
        others = {"before": why.before, **remedies, "verdict": why.verdict, "waited": why.waited}
        lines += [KeyedText(t.message(o), f"{path}.{key}") for key, o in others.items() if o]
    return {t("preemption.title"): lines} if lines else {}


def _tables(t: Translator, data: Data, cells: list[PolicyCell]) -> list[Cells]:
    results = [cell.result for cell in cells if cell.result is not None]
    states = [(t(f"term.{name}.name"), name, "count") for name in charts.states_of(results)]
    load = [(t("metric.running"), "running", "mean"), (t("metric.waiting"), "waiting", "mean"),
            (t("metric.preemptions"), "preempted", "count")]  # fmt: skip
    groups = [
        replace(made, title=t("sim.page.group", group=made.title))
        for made in (figure_cells(t, *each, cells) for each in GROUPS.items())
    ]
    return [
        brief_cells(t, cells),
        _moments(t, "ledger", results, states),  # type: ignore[arg-type]
        _moments(t, "load", results, load),  # type: ignore[arg-type]
        *groups,
        *(sweep_cells(t, sweep) for sweep in sweeps_of(data)),
    ]


def _moments(
    t: Translator, name: str, results: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str, Unit]],
) -> Cells:  # fmt: skip
    """Levels of each policy at some times."""
    rows = []
    for result in results:
        series, path = result["series"], f"cells[{policy_of(result)}].result.series"
        levels = {f"levels.{key}": values for key, values in series["levels"].items()}
        levels["preempted"] = series["preempted"]
        keys = [key if key in levels else f"levels.{key}" for _, key, _ in columns]
        for n in charts.moments_of(result):
            ends = KeyedText(written(series["ends_s"][n], "seconds"), f"{path}.ends_s.{n}")
            cells = (
                KeyedText(written(levels[key][n], unit), f"{path}.{key}.{n}") if key in levels
                else DASH
                for key, (_, _, unit) in zip(keys, columns, strict=True)
            )  # fmt: skip
            rows.append([policy_of(result), ends, *cells])
    heads = [t("sim.page.policy"), t("sim.page.until"), *(label for label, _, _ in columns)]
    note = t("sim.page.table_note")
    return Cells(t(f"sim.page.{name}.title"), heads, rows, notes=[note], name=name)


def _charts(b: Bilingual, data: Data) -> dict[str, Markup]:
    results = [cell.result for cell in cells_of(data) if cell.result is not None]
    if not results:
        return {}
    shown = {name for each in results for name in charts.parts_of(each)}
    parts = [name for name in charts.PARTS if name in shown]
    nobody = "caption" if charts.preempted(results) else "nobody"

    def of(
        name: str, draw: Callable[..., Markup], states: Sequence[str], note: str = "caption"
    ) -> Markup:
        legend = [(swatch(state), message(f"term.{state}.name")) for state in states]
        picture = both_widths(lambda width: draw(b, results, width))
        notes = [message(f"sim.page.{name}.lead"), message(f"sim.page.{name}.{note}")]
        return figure(b, message(f"sim.page.{name}.title"), picture, legend, notes)

    return {
        "brief": patterns() + of("means", charts.means_chart, parts),
        "ledger": of("ledger", charts.ledger_chart, charts.states_of(results)),
        "load": of("load", charts.load_chart, (), nobody),
        **{sweep.chart: _sweep_chart(b, sweep) for sweep in sweeps_of(data)},
    }


def _sweep_chart(b: Bilingual, sweep: Sweep) -> Markup:
    """Line chart of a sweep."""
    texts = f"sim.sweep.{sweep.name}"
    chart = LineChart(
        name=sweep.chart,
        table=f"{sweep.chart}-data",
        title=message(f"{texts}.title"),
        about=message(f"{texts}.about"),
        axis=message(f"{texts}.axis"),
        points=[written(point, sweep.axis_unit) for point in sweep.axis],
        lines=list(sweep.lines.values()),
        unit=sweep.unit,
        mark=sweep.axis.index(sweep.mark) if sweep.mark in sweep.axis else None,
    )
    legend = [(line_swatch(n), sweep.label(line)) for n, line in enumerate(sweep.lines)]
    own = [message("sim.page.sweeps.own")] if chart.mark is not None else []
    return figure(b, chart.title, line_chart(b, chart), legend, own)
