"""What a reader is told a figure is of: cells, requests, memory, and the line of a chart."""

from __future__ import annotations

import re

import pytest
from made_up import Figures, cell, findings, notes, why

from experiment.analysis.experiment_results import CellResult, ExperimentResult
from experiment.config.reading import load_config
from experiment.experiments.labels import figure_label
from experiment.experiments.registry import find_experiment
from experiment.files.shipped import CONFIGS
from experiment.report.facts.bilingual import Bilingual
from experiment.report.page.experiment import _chart, experiment_charts
from experiment.text import Translator


def result_of(name: str, figures: list[str], *cells: CellResult) -> ExperimentResult:
    """What a page is drawn of; all figures are counts."""
    infos = [{"figure": each, "unit": "count", "kind": "count", "better": None} for each in figures]
    return ExperimentResult.model_validate({
        "name": name, "size": "full", "repeats": 3, "cells_planned": len(cells), "focus": 0,
        "figures": infos, "charts": figures, "cells": [one.model_dump() for one in cells],
        "findings": [], "problems": [], "notes": [],
    })  # fmt: skip


def gave_way(index: int, size: int, way: str, outputs: list[str]) -> CellResult:
    figures: Figures = {
        "preemptions": int(way != "ample"), "recomputed": 3, "swapped_blocks": 0, "steps": 9,
        "generate_s": [1.0, 1.1, 1.2],
    }  # fmt: skip
    made = cell(index, {"block_size": size, "preemption": way}, paged=figures)
    arms = [arm.model_copy(update={"outputs": outputs}) for arm in made.arms]
    return made.model_copy(update={"arms": arms})


@pytest.mark.parametrize(("last", "equal"), [(["a", "b"], 8), (["a", "c"], 7)])
def test_outputs_of_all_cells_are_counted(last: list[str], equal: int) -> None:
    ways = [(size, way) for size in (16, 32) for way in ("ample", "recompute", "swap")]
    cells = [gave_way(n, *each, ["a", "b"]) for n, each in enumerate(ways)]
    seen = findings("preemption", *cells[:-1], gave_way(5, 32, "swap", last))["outputs"]
    assert (seen.estimate, seen.n) == (equal, 8)
    assert why(seen) == (None if equal == 8 else "digits")


def test_who_is_urgent_and_how_many_run_at_a_time_is_said_beside_the_means() -> None:
    def one(index: int, policy: str) -> CellResult:
        figures: Figures = {"urgent_first_steps": 9 - index, "patient_first_steps": 9 + index}
        made = cell(index, {"policy": policy}, paged=figures)
        return made.model_copy(update={"requests": 32})

    seen = findings("priority", one(0, "fcfs"), one(1, "priority"))
    told = {"urgent": 8, "others": 24, "requests": 32, "limit": 4}
    assert notes(seen["urgent"])["groups"] == told


def test_what_an_arena_has_is_not_drawn_as_the_paged_arm_s() -> None:
    """And its mean stands beside that of blocks."""
    figures = ["first_fit_refused_steps", "first_fit_running_mean", "running_mean"]
    seen: Figures = {name: 2 + place for place, name in enumerate(figures)}
    result = result_of("holes", figures, cell(0, {"requests": 24}, paged=seen))
    charts = experiment_charts(Bilingual("en"), result).values()
    t = Translator("en")
    arena, paged = t("experiments.arena.first_fit"), t("arm_name.paged")
    names = [re.findall(r"<li>.*?</li>", chart) for chart in charts]
    assert [[arena in each for each in one] for one in names] == [[True], [True], [False, True]]
    assert paged in names[2][0]
    means = _chart(result, result.figures[2])
    assert [each for each in means.lines if each != [None]] == [[4], [3]]
    for name in figures[:2]:
        assert arena in t.message(figure_label(name))


@pytest.mark.parametrize("name", ["preemption", "parallel-sampling", "beam", "prefix", "lookup"])
def test_where_cells_have_budgets_of_their_own_the_table_has_them(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.toml", {})
    spec = find_experiment(name)
    cells = spec.cells(config)
    assert "auto" in {one.overrides.get("cache.budget", config.cache.budget) for one in cells}
    assert "budget_bytes" in spec.figures
