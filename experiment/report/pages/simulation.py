"""A simulation as one self-contained page in both languages, drawn as the report of a run is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiment.files.shipped import program
from experiment.record.simulation import SIM_FILE
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.keyed import Paths, Said
from experiment.report.facts.simulation import (
    Fact,
    limit_facts,
    memory_facts,
    refusals,
    trace_facts,
)
from experiment.report.facts.simulation_cells import Cell, cells_of, dashes, spoken
from experiment.report.facts.simulation_figures import GROUPS, Figure, policy_of, rounding_note
from experiment.report.facts.simulation_headline import compared, used_share
from experiment.report.facts.simulation_sweeps import Sweep, sweeps_of
from experiment.report.facts.values import shell_text, unseen
from experiment.report.html import simulation_charts as charts
from experiment.report.html.embed import packed, safe_json
from experiment.report.html.svg import patterns
from experiment.report.page.page import column_heads, page_assets, templates
from experiment.report.pages.simulation_keys import sim_document
from experiment.report.pages.simulation_lines import line_swatch, sweep_chart
from experiment.text.messages import Message, message

Data = Mapping[str, Any]
_MOST_TABLE = 400_000  # of a packed table, several of which stand in the page
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
    keys = Paths(sim_document(data))
    env = templates(b)
    env.globals.update(
        line_swatch=line_swatch,
        explained=policy_message,
        n=lambda path, kind: b.words(keys.number(path, kind)),
        said=lambda key, **paths: b.said(keys.said(key, **paths)),
        stored=lambda path: b.words(keys.stored(path)),
    )
    context: dict[str, Any] = {
        "lang": lang,
        **page_assets(stacked=column_heads(b, policy=[cell.policy for cell in cells])),
        "data": _embedded(data, tables),
        "began": keys.value("began"),
        "cells": cells,
        **_first_screen(keys, data, cells),
        **_pictures(b, keys, cells),
        **_lists(b, keys, data, cells),
    }
    page: str = env.get_template("simulate.html.j2").render(context)
    return page


def policy_message(name: str) -> Message:
    """What a policy does."""
    return message(f"sim.policy.{name.replace('+', '_')}")


def _first_screen(keys: Paths, data: Data, cells: Sequence[Cell]) -> dict[str, Any]:
    failed = [
        (cell.policy, keys.stored(f"cells.{place}.error"))
        for place, cell in enumerate(cells)
        if cell.error is not None
    ]
    refused = [
        (policy, keys.stored(f"facts.refused.{place}"))
        for place, (policy, _) in enumerate(refusals(data))
    ]
    facts = [*_facts(keys, "trace", trace_facts(data)), *_facts(keys, "memory", memory_facts(data))]
    subject = {label.key.rpartition(".")[2]: (label, value) for label, value in facts}
    wanted = ("trace", "rows", "lengths", "arrivals", "model", "gpu", "budget", "max_length")
    return {
        "figures": [_big(keys, cell) for cell in reversed(compared(cells))],
        "alarms": [*failed, *refused],
        "notes": [keys.stored(f"notes.{place}") for place in range(len(data["notes"]))],
        "rounding": rounding_note(cell.policy for cell in cells),
        "interrupted": data["interrupted"],
        "subject": [subject[name] for name in wanted if name in subject],
    }


def _facts(keys: Paths, name: str, facts: Sequence[Fact]) -> list[tuple[Message, Said | None]]:
    """Labels, and values with the keys that they have in the document."""
    return [
        (
            label,
            keys.stored(f"facts.{name}.{place}")
            if isinstance(value, Message)
            else keys.number(f"facts.{name}.{place}", "text"),
        )
        for place, (label, value) in enumerate(facts)
    ]


def _big(keys: Paths, cell: Cell) -> dict[str, Any]:
    return {
        "kind": "paged" if cell.policy.startswith("paged") else "contiguous",
        "policy": cell.policy,
        "share": keys.number(f"figures[{cell.policy}].used_of_allocated", "unit.share"),
        "width": 100 * (used_share(cell) or 0),
    }


def _pictures(b: Bilingual, keys: Paths, cells: Sequence[Cell]) -> dict[str, Any]:
    results = [cell.result for cell in cells if cell.result is not None]
    shown = {name for each in results for name in charts.parts_of(each)}
    return {
        "patterns": patterns(),
        "states": charts.states_of(results),
        "parts": [name for name in charts.PARTS if name in shown],
        "ledger": charts.ledger_chart(b, results),
        "means": charts.means_chart(b, keys, results),
        "load": charts.load_chart(b, results),
        "preempted": charts.preempted(results),
        "moments": [(policy_of(each), charts.moments_of(each)) for each in results],
    }


def _lists(b: Bilingual, keys: Paths, data: Data, cells: list[Cell]) -> dict[str, Any]:
    sweeps = [_sweep(b, keys, sweep) for sweep in sweeps_of(data)]
    sections = ["ledger", "means", "load", "figures", "sweeps", "trace", "memory", "words", "about"]
    if not sweeps:
        sections.remove("sweeps")
    return {
        "sections": sections,
        "sweeps": sweeps,
        "tables": {
            name: _rows(keys, spoken(group, cells), cells) for name, group in GROUPS.items()
        },
        "dashes": {name: dashes(group, cells) for name, group in GROUPS.items()},
        "trace": _facts(keys, "trace", trace_facts(data)),
        "memory": _facts(keys, "memory", memory_facts(data)),
        "limits": _facts(keys, "limits", limit_facts(data)),
        "terms": _TERMS,
        "command": shell_text([*program(), *data["command"]]),
        "numbered": unseen(data["command"]),
    }


Row = tuple[Message, list[Said | None]]


def _rows(keys: Paths, figures: Sequence[Figure], cells: Sequence[Cell]) -> list[Row]:
    """A label and the value of each policy."""
    return [
        (f.label, [keys.number(f"figures[{c.policy}].{f.name}", f"unit.{f.unit}") for c in cells])
        for f in figures
    ]


def _sweep(b: Bilingual, keys: Paths, sweep: Sweep) -> dict[str, Any]:
    path, axis_kind = f"sweeps[{sweep.name}]", f"unit.{sweep.axis_unit}"
    return {
        "sweep": sweep,
        "chart": sweep_chart(b, sweep),
        "labels": [sweep.label(name) for name in sweep.lines],
        "rows": [
            (
                keys.number(f"{path}.axis.{index}", axis_kind),
                [
                    keys.number(f"{path}.lines[{line}].{index}", f"unit.{sweep.unit}")
                    for line in sweep.lines
                ],
            )
            for index in range(len(sweep.axis))
        ],
        "errors": [
            (name, keys.number(f"{path}.axis.{sweep.axis.index(x)}", axis_kind), why)
            for name, x, why in sweep.errors
        ],
    }


def _embedded(data: Data, tables: Mapping[str, str]) -> Any:
    """The record without its series, and the tables, for downloading."""
    cells = [dict(cell) for cell in data["cells"]]
    for cell in cells:
        if cell["result"]:
            cell["result"] = {k: v for k, v in cell["result"].items() if k != "series"}
    made = {name: packed(text) for name, text in tables.items()}
    short = {name: table for name, table in made.items() if len(table) <= _MOST_TABLE}
    return safe_json({"name": SIM_FILE, **data, "cells": cells, "tables": short})
