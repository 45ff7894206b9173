"""What kvsim is asked for each arm."""

from __future__ import annotations

import pytest
from in_process import Ran, run, tiny_config
from made_up import cell

from experiment.analysis.experiment_results import ExperimentResult, FigureValue
from experiment.config.arms import ARMS
from experiment.events import ModelPrepared, WorkloadReady
from experiment.experiments.evaluate import _problems
from experiment.experiments.figures import FIGURES
from experiment.experiments.prediction import predict
from experiment.text.messages import Message, message
from kvsim.sim.metrics import SimResult


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Twelve requests in a budget of four slabs."""
    config = tiny_config(
        "capacity",
        experiment__values=[12],
        experiment__options={"lengths": [[5, 4], [9, 5]]},
        cache__max_length=64,
        cache__budget=4 * 64 * 1024,
        run__arms=["contiguous.batch"],
    )
    return run(config, tmp_path_factory.mktemp("foretold") / "run")


def said(ran: Ran, arm: str) -> SimResult | Message:
    model, workload = ran.record.first(ModelPrepared), ran.record.first(WorkloadReady)
    assert model is not None
    assert workload is not None
    return predict(arm, ran.config, model, workload)


def test_a_compiled_batch_is_foretold_as_a_batch_and_not_as_a_growing_cache(ran: Ran) -> None:
    """It is the same padded batch with its decoding step compiled."""
    seen = {}
    for arm in sorted(ARMS):
        found = said(ran, arm)
        if isinstance(found, SimResult):
            seen[arm] = (round(found.busy_s), found.running.max)
    assert seen["contiguous.compiled"] == seen["contiguous.batch"]
    assert seen["contiguous.batch"][1] == 4 > seen["contiguous.growing"][1] == 1
    assert ran.result.exact_counts[0] == ran.result.exact_counts[1] > 0


def test_an_arm_that_nobody_knows_is_not_foretold_as_another(ran: Ran) -> None:
    """Somebody may add one; what it counts is still shown."""
    assert said(ran, "another") == message("experiments.unforetold.other_engine")


def test_a_growing_cache_is_not_foretold_beyond_the_budget(ran: Ran) -> None:
    """Its longest request ends with 13 slots."""
    model, workload = ran.record.first(ModelPrepared), ran.record.first(WorkloadReady)
    assert model is not None
    assert workload is not None
    seen = [
        predict(
            "contiguous.growing", ran.config, model,
            workload.model_copy(update={"budget_bytes": 13 * 1024 - less}),
        )
        for less in (0, 1)
    ]  # fmt: skip
    assert isinstance(seen[0], SimResult)
    assert isinstance(seen[1], Message)
    assert seen[1].key == "error.workload.no_growth"


def test_counts_that_restate_the_config_are_not_counted_as_foretold() -> None:
    """Their values are shown beside kvsim's all the same, and must be equal."""
    exact = FigureValue(value=8, foretold=8)
    given = ("blocks", "usable_blocks", "block_slots", "usable_slots")
    figures = {**dict.fromkeys(given, exact), "steps": exact, "waste": FigureValue(value=1)}
    one = cell(0, {"requests": 4}, paged={})
    arms = [one.arms[0].model_copy(update={"figures": figures})]
    cells = [one.model_copy(update={"arms": arms})]
    result = ExperimentResult(
        name="capacity", size="full", repeats=3, cells_planned=1, focus=0, figures=[], charts=[],
        cells=cells, findings=[], problems=[], notes=[],
    )  # fmt: skip
    assert result.exact_counts == (1, 1)
    assert {*given} <= {*FIGURES}
    wrong = {**figures, "blocks": FigureValue(value=8, foretold=7)}
    arms = [arms[0].model_copy(update={"figures": wrong})]
    assert len(_problems("capacity", [cells[0].model_copy(update={"arms": arms})])) == 1
