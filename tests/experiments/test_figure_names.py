"""A figure has one name, unless an experiment calls it otherwise; then it does so everywhere."""

from __future__ import annotations

import pytest
from made_up import cell

from experiment.analysis.experiment_results import ExperimentResult, FigureValue
from experiment.compare.results import Figure
from experiment.experiments.evaluate import _problems
from experiment.experiments.registry import EXPERIMENTS, figure_name
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.compare import title
from experiment.report.files.experiment_markdown import experiment_markdown
from experiment.report.files.markup import plain
from experiment.report.page.experiment import experiment_context
from experiment.text import LANGUAGES, Translator, catalogue


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_runs_in_beam_search_are_sequences_and_elsewhere_requests(lang: str) -> None:
    t = Translator(lang)
    own, usual = t("experiments.beam.running_peak"), t("experiments.figure.running_peak")
    assert own != usual
    for name, spec in EXPERIMENTS.items():
        assert spec.renamed <= set(spec.figures)
        told = t.message(figure_name(name, "running_peak"))
        assert told == (own if name == "beam" else usual)
        figure = Figure(id=f"{name}/a=1/paged/running_peak", arm="paged", metric="running_peak",
                        unit="count", kind="count", better=None)  # fmt: skip
        assert t.message(title(figure)) == told


def test_every_name_of_an_experiment_s_own_has_its_text() -> None:
    for name, spec in EXPERIMENTS.items():
        for figure in spec.renamed:
            for lang in LANGUAGES:
                assert figure_name(name, figure).key in catalogue(lang)


def test_its_page_its_summary_and_its_problems_call_it_so() -> None:
    one = cell(0, {"beam_width": 2}, paged={"running_peak": 6})
    wrong = FigureValue(value=6, foretold=5)
    arms = [one.arms[0].model_copy(update={"figures": {"running_peak": wrong}})]
    result = ExperimentResult.model_validate({
        "name": "beam", "size": "full", "repeats": 3, "cells_planned": 1, "focus": 0,
        "figures": [{"figure": "running_peak", "unit": "count", "kind": "count", "better": None}],
        "charts": ["running_peak"], "cells": [one.model_copy(update={"arms": arms}).model_dump()],
        "findings": [], "problems": [], "notes": [],
    })  # fmt: skip
    t = Translator("en")
    own = t("experiments.beam.running_peak")
    context = experiment_context(Bilingual("en"), result)
    assert t.message(context["experiment_charts"][0].title) == own
    assert t.message(context["figure_label"]("running_peak")) == own
    assert plain(own) in "\n".join(experiment_markdown(t, result))
    (problem,) = _problems("beam", result.cells)
    assert own in t.message(problem)
