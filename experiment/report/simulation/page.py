"""A simulation as one self-contained page in both languages, drawn as the report of a run is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from experiment.messages import Message, message
from experiment.report.bilingual import Bilingual
from experiment.report.embed import safe_json
from experiment.report.html import page_assets, templates
from experiment.report.simulation import charts
from experiment.report.simulation.cells import Cell, cells_of, dashes, spoken
from experiment.report.simulation.facts import limit_facts, memory_facts, refusals, trace_facts
from experiment.report.simulation.figures import GROUPS, Figure
from experiment.report.simulation.headline import compared, headline, used_share
from experiment.report.simulation.lines import line_swatch, sweep_chart
from experiment.report.simulation.sweeps import Sweep, sweeps_of
from experiment.report.simulation.writing import written
from experiment.report.svg import patterns
from experiment.shipped import program

Data = Mapping[str, Any]
_MOST_CSV = 1_500_000
_TERMS = (
    "slot", "block", "reserved", "allocated", "live", "wasted", "unwritten", "never_written",
    "padding", "finished", "rounding", "cached", "hole", "watermark", "free",
)  # fmt: skip


def simulation_html(data: Data, tables: Mapping[str, str], lang: str) -> str:
    """The whole page; ``lang`` is what it shows until someone switches.

    Args:
        tables: CSV tables by the name of their file, to be downloaded from the page.
    """
    b = Bilingual(lang)
    cells = cells_of(data)
    env = templates(b)
    env.globals.update(line_swatch=line_swatch, explained=policy_message)
    context: dict[str, Any] = {
        "lang": lang,
        **page_assets(),
        "data": _embedded(data, tables),
        "began": _began(data),
        "cells": cells,
        **_first_screen(data, cells),
        **_pictures(b, cells),
        **_lists(b, data, cells),
    }
    page: str = env.get_template("simulate.html.j2").render(context)
    return page


def policy_message(name: str) -> Message:
    """What a policy does."""
    return message(f"sim.policy.{name.replace('+', '_')}")


def _began(data: Data) -> str:
    zone = timezone(timedelta(seconds=data["utc_offset_s"]))
    moment = datetime.fromtimestamp(data["wall_ns"] / 1e9, UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M")


def _first_screen(data: Data, cells: Sequence[Cell]) -> dict[str, Any]:
    failed = [(cell.policy, cell.error) for cell in cells if cell.error is not None]
    notes = [Message.model_validate(note) for note in data["notes"]]
    if data["interrupted"]:
        notes.append(message("sim.interrupted"))
    subject = {label.key.rpartition(".")[2]: (label, value) for label, value in
               (*trace_facts(data), *memory_facts(data))}  # fmt: skip
    wanted = ("trace", "rows", "lengths", "arrivals", "model", "gpu", "budget", "max_length")
    return {
        "headline": headline(data),
        "figures": [_big(cell) for cell in reversed(compared(cells))],
        "alarms": [*failed, *refusals(data)],
        "notes": notes,
        "subject": [subject[name] for name in wanted if name in subject],
    }


def _big(cell: Cell) -> dict[str, Any]:
    share = used_share(cell)
    assert cell.result is not None
    return {
        "kind": "paged" if cell.policy.startswith("paged") else "contiguous",
        "policy": cell.policy,
        "share": written(share, "share"),
        "width": 100 * (share or 0),
        "running": written(cell.result["running"]["mean"], "mean"),
    }


def _pictures(b: Bilingual, cells: Sequence[Cell]) -> dict[str, Any]:
    results = [cell.result for cell in cells if cell.result is not None]
    shown = {name for each in results for name in charts.parts_of(each)}
    return {
        "patterns": patterns(),
        "states": charts.states_of(results),
        "parts": [name for name in charts.PARTS if name in shown],
        "ledger": charts.ledger_chart(b, results),
        "means": charts.means_chart(b, results),
        "load": charts.load_chart(b, results),
    }


def _lists(b: Bilingual, data: Data, cells: list[Cell]) -> dict[str, Any]:
    sweeps = [_sweep(b, sweep) for sweep in sweeps_of(data)]
    sections = ["ledger", "means", "load", "figures", "sweeps", "trace", "memory", "words", "about"]
    if not sweeps:
        sections.remove("sweeps")
    return {
        "sections": sections,
        "sweeps": sweeps,
        "tables": {name: _rows(spoken(group, cells), cells) for name, group in GROUPS.items()},
        "dashes": {name: dashes(group, cells) for name, group in GROUPS.items()},
        "trace": trace_facts(data),
        "memory": memory_facts(data),
        "limits": limit_facts(data),
        "terms": _TERMS,
        "slot_bytes": data["setup"]["slot_bytes"],
        "command": shlex.join([*program(), *data["command"]]),
        "version": data["version"],
        "schema": data["schema_version"],
    }


def _rows(figures: Sequence[Figure], cells: Sequence[Cell]) -> list[tuple[Message, list[str]]]:
    """A label and the value of each policy."""
    return [(f.label, [written(cell.value(f), f.unit) for cell in cells]) for f in figures]


def _sweep(b: Bilingual, sweep: Sweep) -> dict[str, Any]:
    return {
        "sweep": sweep,
        "chart": sweep_chart(b, sweep),
        "labels": [sweep.label(name) for name in sweep.lines],
        "rows": [
            (
                written(x, sweep.axis_unit),
                [written(values[index], sweep.unit) for values in sweep.lines.values()],
            )
            for index, x in enumerate(sweep.axis)
        ],
        "errors": [(name, written(x, sweep.axis_unit), why) for name, x, why in sweep.errors],
    }


def _embedded(data: Data, tables: Mapping[str, str]) -> Any:
    """The record without its series, and the tables, for downloading."""
    cells = [dict(cell) for cell in data["cells"]]
    for cell in cells:
        if cell["result"]:
            cell["result"] = {k: v for k, v in cell["result"].items() if k != "series"}
    short = {name: text for name, text in tables.items() if len(text) <= _MOST_CSV}
    return safe_json({"name": "sim.json", **data, "cells": cells, "tables": short})
