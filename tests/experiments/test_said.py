"""Sentences that must not say the opposite of what was seen, or more than was."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run, tiny_config
from made_up import Figures, cell, findings, notes, why

from experiment.experiments.holes import HOLES
from experiment.report.console.experiment import show_experiment
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message


@pytest.mark.parametrize("shown", [True, False])
def test_what_blocks_gain_over_an_arena_is_not_all_its_holes(shown: bool) -> None:
    seen: Figures = {
        "first_fit_refused_steps": 3, "first_fit_steps": 90, "first_fit_running_mean": 4.0,
        "steps": 60, "running_mean": 8.0 if shown else 4.0, "preemptions": 0,
    }  # fmt: skip
    told = findings(HOLES.name, cell(0, {"requests": 24}, paged=seen))["paged"]
    assert told.verdict == ("shown" if shown else "not_shown")
    # Where nothing is gained there is nothing to share out.
    assert ("paged_ahead" in notes(told)) is shown
    assert why(told) == (None if shown else "small")


def test_a_table_does_not_call_counts_the_same_that_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the console and in the page."""
    config = tiny_config(
        "block-size",
        experiment__values=[4],
        workload__lengths=[[5, 4]],
        cache__max_length=64,
        cache__budget=64 * 1024,
        run__arms=["paged"],
    )
    ran = run(config, tmp_path / "run")
    problem = message("experiments.problem.moved")
    cells = [
        one.model_copy(
            update={"arms": [arm.model_copy(update={"problems": [problem]}) for arm in one.arms]}
        )
        for one in ran.result.cells
    ]
    apart = ran.result.model_copy(update={"cells": cells})
    page = report_html(ran.shown, ran.results.model_copy(update={"experiment": apart}), "en")
    for result, key in ((ran.result, "table_note"), (apart, "table_note_apart")):
        for lang in LANGUAGES:
            show_experiment(ConsoleReporter(lang), ran.results, result, [])
            printed = "".join(capsys.readouterr().out.split())
            text = Translator(lang)(f"experiments.{key}")
            assert "".join(text.split()) in printed
            assert (text[:20] in page) is (result is apart)
