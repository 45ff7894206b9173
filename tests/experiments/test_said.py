"""Sentences that must not say the opposite of what was seen, or more than was."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import run, tiny_config
from made_up import Figures, below, cell, findings

from experiment.analysis.experiment_results import CellResult
from experiment.experiments.holes import HOLES
from experiment.report.console.experiment import show_experiment
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.page.page import report_html
from experiment.text import LANGUAGES, Translator
from experiment.text.messages import message


@pytest.mark.parametrize(
    ("later", "key"), [([3.0, 3.1, 3.2], "less"), ([0.1, 0.2, 0.3], "seen"), ([1.0] * 3, "same")]
)
def test_a_first_question_that_is_clearly_sooner_is_a_difference(
    later: list[float], key: str
) -> None:
    def one(index: int, cache: str) -> CellResult:
        figures: Figures = {"first_ttft_s": [0.9, 1.0, 1.1], "later_ttft_s": later}
        return cell(index, {"rows": 25, "prefix_cache": cache}, paged=figures)

    seen = findings("prefix", one(0, "off"), one(1, "on"))["first"]
    assert seen.text.key == f"experiments.prefix.first_{key}"


def test_blocks_that_are_swapped_are_counted_out_and_back() -> None:
    figures: Figures = {"preemptions": 1, "recomputed": 9, "swapped_blocks": 6, "steps": 9,
                        "generate_s": [1, 1, 1]}  # fmt: skip
    cells = [cell(n, {"block_size": 4, "preemption": way}, paged=figures)
             for n, way in enumerate(("ample", "swap"))]  # fmt: skip
    text = findings("preemption", *cells)["swap"].text
    assert "6 blocks copied, out and back counted together" in Translator("en").message(text)


@pytest.mark.parametrize("shown", [True, False])
def test_what_blocks_gain_over_an_arena_is_not_all_its_holes(shown: bool) -> None:
    seen: Figures = {
        "first_fit_refused_steps": 3, "first_fit_steps": 90, "first_fit_running_mean": 4.0,
        "steps": 60, "running_mean": 8.0 if shown else 4.0, "preemptions": 0,
    }  # fmt: skip
    told = findings(HOLES.name, cell(0, {"requests": 24}, paged=seen))["paged"]
    assert told.verdict == ("shown" if shown else "not_shown")
    # Where nothing is gained there is nothing to share out.
    assert ("holes.paged_ahead" in below(told)) is shown


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
