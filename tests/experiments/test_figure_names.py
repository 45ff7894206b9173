"""A figure has one name, unless an experiment calls it otherwise; then it does so everywhere."""

from __future__ import annotations

import pytest

from experiment.analysis.metrics import METRICS
from experiment.compare.results import Figure
from experiment.experiments.registry import EXPERIMENTS, figure_name
from experiment.report.facts.compare import title
from experiment.text import LANGUAGES, Translator


@pytest.mark.parametrize("lang", LANGUAGES)
def test_what_runs_in_beam_search_are_sequences_and_elsewhere_requests(lang: str) -> None:
    t = Translator(lang)
    own, usual = t("experiments.beam.running_peak"), t.message(METRICS["running_peak"].label)
    assert own != usual
    for name, spec in EXPERIMENTS.items():
        assert spec.renamed <= set(spec.figures)
        told = t.message(figure_name(name, "running_peak"))
        assert told == (own if name == "beam" else usual)
        figure = Figure(id=f"{name}/a=1/paged/running_peak", arm="paged", metric="running_peak",
                        unit="count", kind="count", better=None)  # fmt: skip
        assert t.message(title(figure)) == told
