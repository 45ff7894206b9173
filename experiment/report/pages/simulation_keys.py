"""What key paths of a simulation's page begin in: sim.json, and what is worked out from it.

    cells[paged].result.series.levels.live.12      a value of sim.json
    figures[paged].used_mean                       a figure of the tables, see figures.py
    sweeps[budgets].lines[paged].1                 a point of a sweep, see sweeps.py
    facts.trace.2, facts.refused.0, headline       a sentence

How paths are read says :mod:`experiment.report.facts.keyed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from experiment.report.facts.simulation import limit_facts, memory_facts, refusals, trace_facts
from experiment.report.facts.simulation_cells import cells_of
from experiment.report.facts.simulation_figures import FIGURES
from experiment.report.facts.simulation_headline import headline, used_share
from experiment.report.facts.simulation_sweeps import sweeps_of
from experiment.text.messages import Message

Data = Mapping[str, Any]


def sim_document(data: Data) -> dict[str, Any]:
    """The record with the tables, sweeps and sentences that the page shows of it."""
    cells = cells_of(data)
    facts = {"trace": trace_facts, "memory": memory_facts, "limits": limit_facts}
    return {
        **data,
        "began": _began(data),
        "headline": headline(data).model_dump(),
        "figures": {
            cell.policy: {figure.name: cell.value(figure) for figure in FIGURES}
            | {"used_of_allocated": used_share(cell)}
            for cell in cells
        },
        "sweeps": {
            sweep.name: {"axis": list(sweep.axis), "lines": dict(sweep.lines)}
            for sweep in sweeps_of(data)
        },
        "facts": {
            **{name: [_plain(value) for _, value in told(data)] for name, told in facts.items()},
            "refused": [_plain(text) for _, text in refusals(data)],
        },
    }


def _plain(value: Message | str) -> Any:
    return value.model_dump() if isinstance(value, Message) else value


def _began(data: Data) -> str:
    zone = timezone(timedelta(seconds=data["utc_offset_s"]))
    moment = datetime.fromtimestamp(data["wall_ns"] / 1e9, UTC).astimezone(zone)
    return moment.strftime("%Y-%m-%d %H:%M")
