"""What benchmark actions of CI services read of a run: directions, names and units."""

from __future__ import annotations

import json
from pathlib import Path

from compare_runs import events, figure, write

from experiment.compare.facts import read_side
from experiment.experiments.figures import FIGURES
from experiment.report.files.ci_benchmark import benchmark_json


def test_benchmark_actions_see_memory_grow_and_units_that_can_be_read(tmp_path: Path) -> None:
    """What is handed out has no better direction in a comparison; who guards it wants it less."""
    figures = read_side(write(tmp_path / "run", events(4))).figures.values()
    less = {entry["name"]: entry for entry in json.loads(benchmark_json(figures, "less"))}
    more = {entry["name"]: entry for entry in json.loads(benchmark_json(figures, "more"))}
    memory = ("reserved_bytes", "allocated_bytes", "allocated_slots", "wasted_bytes")
    assert {f"paged/{name}" for name in memory} <= less.keys()
    units = {name: less[f"paged/{name}"]["unit"] for name in ("allocated_bytes", "steps")}
    assert units == {"allocated_bytes": "bytes", "steps": "count"}
    assert less["paged/generate_s"]["unit"] == "s"
    assert more["paged/tokens_per_s"]["unit"] == "tokens/s"
    assert more["paged/live_share"]["unit"] == "share of 1"


def test_blocks_and_tables_that_grow_raise_an_alert() -> None:
    """Of neither is less better in a comparison: both grow with the requests at a time."""
    names = ("held_slots", "unshared_slots", "table_entries")
    seen = [figure(name, 2.0, unit="mean", better=FIGURES[name].about.better) for name in names]
    listed = [entry["name"] for entry in json.loads(benchmark_json(seen, "less"))]
    assert listed == [each.id for each in seen]
