"""Page of a simulation: self-contained, in both languages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from experiment.analysis.results import Preempting
from experiment.files.shipped import program
from experiment.record.simulation import SIM_FILE
from experiment.report import Reports
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.data_key import Keyed
from experiment.report.facts.simulation import (
    limit_facts,
    memory_facts,
    refusals,
    trace_facts,
)
from experiment.report.facts.simulation_cells import PolicyCell, cells_of, dashes, visible_figures
from experiment.report.facts.simulation_figures import (
    GROUPS,
    SimulationFigure,
    policy_of,
    rounding_note,
)
from experiment.report.facts.simulation_headline import headline, headline_cells, used_share
from experiment.report.facts.simulation_sweeps import Sweep, sweeps_of
from experiment.report.facts.simulation_tables import tables_of
from experiment.report.facts.texts import date_text
from experiment.report.facts.values import has_invisible, shell_text, written
from experiment.report.html import simulation_charts as charts
from experiment.report.html.embed import packed, safe_json
from experiment.report.html.lines import LineChart, line_chart, line_swatch
from experiment.report.html.svg import patterns
from experiment.report.page.page import column_heads, page_assets, templates
from experiment.simulate.names import policy_message
from experiment.text.messages import Message, message

__all__ = ["line_swatch", "sweep_chart"]


def sweep_chart(b: Bilingual, sweep: Sweep) -> Markup:
    """Line chart of a sweep."""
    texts = f"sim.sweep.{sweep.name}"
    return line_chart(
        b,
        LineChart(
            name=f"sweep-{sweep.name.replace('_', '-')}",
            table=f"sweep-{sweep.name}-data",
            title=message(f"{texts}.title"),
            about=message(f"{texts}.about"),
            axis=message(f"{texts}.axis"),
            points=[written(point, sweep.axis_unit) for point in sweep.axis],
            lines=list(sweep.lines.values()),
            unit=sweep.unit,
            mark=sweep.axis.index(sweep.mark) if sweep.mark in sweep.axis else None,
        ),
    )


Data = Mapping[str, Any]
_MAX_TABLE = 400_000  # bytes of a packed table in the page
_TERMS = (
    "slot", "block", "reserved", "allocated", "live", "wasted", "unwritten", "never_written",
    "padding", "finished", "rounding", "cached", "hole", "watermark", "free",
)  # fmt: skip


def simulation_reports(data: Data, lang: str) -> Reports:
    """Page and tables of a simulation."""
    tables = tables_of(data)
    return {
        "report.html": simulation_html(data, tables, lang),
        **tables,
    }


def simulation_html(data: Data, tables: Mapping[str, str], lang: str) -> str:
    """Render the page; ``lang`` is its initial language.

    Args:
        tables: CSV tables by file name, for downloading.
    """
    b = Bilingual(lang)
    cells = cells_of(data)
    env = templates(b)
    env.globals.update(
        line_swatch=line_swatch,
        explained=policy_message,
        written=written,
    )
    context: dict[str, Any] = {
        "lang": lang,
        **page_assets(stacked=column_heads(b, policy=[cell.policy for cell in cells])),
        "data": _embedded(data, tables),
        "record": data,
        "began": date_text(data["wall_ns"], data["utc_offset_s"]),
        "headline": headline(data),
        "cells": cells,
        **_first_screen(data, cells),
        **_pictures(b, cells),
        **_lists(b, data, cells),
        "preempting": [
            {
                "policy": each["policy"],
                "why": Preempting.model_validate(each["why"]),
                "key": f"preempting.{place}.why",
            }
            for place, each in enumerate(data.get("preempting", ()))
        ],
    }
    page: str = env.get_template("simulate.html.j2").render(context)
    return page


def _first_screen(data: Data, cells: Sequence[PolicyCell]) -> dict[str, Any]:
    failed = [
        (cell.policy, Keyed(cell.error, f"cells.{place}.error"))
        for place, cell in enumerate(cells)
        if cell.error is not None
    ]
    facts = [*trace_facts(data), *memory_facts(data)]
    subject = {label.key.rpartition(".")[2]: (label, value) for label, value in facts}
    wanted = ("trace", "rows", "lengths", "arrivals", "model", "gpu", "budget", "max_length")
    return {
        "figures": [_big(cell) for cell in reversed(headline_cells(cells))],
        "alarms": [*failed, *refusals(data)],
        "notes": [
            Keyed(Message.model_validate(note), f"notes.{place}")
            for place, note in enumerate(data["notes"])
        ],
        "rounding": rounding_note(cell.policy for cell in cells),
        "interrupted": data["interrupted"],
        "subject": [subject[name] for name in wanted if name in subject],
    }


def _big(cell: PolicyCell) -> dict[str, Any]:
    share = used_share(cell)
    return {
        "policy": cell.policy,
        "share": written(share, "share"),
        "width": 100 * (share or 0),
        "running": cell.result["running"]["mean"] if cell.result else None,
    }


def _pictures(b: Bilingual, cells: Sequence[PolicyCell]) -> dict[str, Any]:
    results = [cell.result for cell in cells if cell.result is not None]
    shown = {name for each in results for name in charts.parts_of(each)}
    return {
        "patterns": patterns(),
        "states": charts.states_of(results),
        "parts": [name for name in charts.PARTS if name in shown],
        "ledger": charts.ledger_chart(b, results),
        "means": charts.means_chart(b, results),
        "load": charts.load_chart(b, results),
        "preempted": charts.preempted(results),
        "moments": [(policy_of(each), each["series"], charts.moments_of(each)) for each in results],
    }


def _lists(b: Bilingual, data: Data, cells: list[PolicyCell]) -> dict[str, Any]:
    sweeps = [_sweep(b, sweep) for sweep in sweeps_of(data)]
    sections = ["ledger", "means", "load", "figures", "sweeps", "trace", "memory", "words", "about"]
    if not sweeps:
        sections.remove("sweeps")
    return {
        "sections": sections,
        "sweeps": sweeps,
        "tables": {
            name: _rows(visible_figures(group, cells), cells) for name, group in GROUPS.items()
        },
        "dashes": {name: dashes(group, cells) for name, group in GROUPS.items()},
        "trace": trace_facts(data),
        "memory": memory_facts(data),
        "limits": limit_facts(data),
        "terms": _TERMS,
        "command": shell_text([*program(), *data["command"]]),
        "numbered": has_invisible(data["command"]),
    }


Row = tuple[Message, list[str | Keyed | None]]


def _rows(figures: Sequence[SimulationFigure], cells: Sequence[PolicyCell]) -> list[Row]:
    """Rows with a label and the value of each policy."""
    return [(figure.about.label, [_value(cell, figure) for cell in cells]) for figure in figures]


def _value(cell: PolicyCell, figure: SimulationFigure) -> str | Keyed | None:
    value = cell.value(figure)
    if value is None:
        return None
    text = written(value, figure.about.unit)
    if figure.key is None:
        return text
    return Keyed(text, f"cells[{cell.policy}].result.{figure.key}")


def _sweep(b: Bilingual, sweep: Sweep) -> dict[str, Any]:
    points = {x: written(x, sweep.axis_unit) for x in sweep.axis}
    return {
        "sweep": sweep,
        "chart": sweep_chart(b, sweep),
        "labels": [sweep.label(name) for name in sweep.lines],
        "rows": [
            (
                points[x],
                [
                    None if line[index] is None else written(line[index], sweep.unit)
                    for line in sweep.lines.values()
                ],
            )
            for index, x in enumerate(sweep.axis)
        ],
        "errors": [(name, points[x], why) for name, x, why in sweep.errors],
    }


def _embedded(data: Data, tables: Mapping[str, str]) -> Any:
    """The record without series, and the tables, for downloading."""
    cells = [dict(cell) for cell in data["cells"]]
    for cell in cells:
        if cell["result"]:
            cell["result"] = {k: v for k, v in cell["result"].items() if k != "series"}
    made = {name: packed(text) for name, text in tables.items()}
    short = {name: table for name, table in made.items() if len(table) <= _MAX_TABLE}
    return safe_json({"name": SIM_FILE, **data, "cells": cells, "tables": short})
