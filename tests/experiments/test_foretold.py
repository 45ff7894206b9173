"""What kvsim is asked for each arm, and what it says of numbers between those that were tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import Ran, run, tiny_config
from made_up import beside, budget, cell, notes, sides

from experiment.analysis.experiment_results import ExperimentResult, FigureValue
from experiment.config.arms import ARMS
from experiment.events import ModelPrepared, WorkloadReady
from experiment.experiments.capacity import CAPACITY
from experiment.experiments.evaluate import _problems, ascending
from experiment.experiments.figures import FIGURES
from experiment.experiments.found import Found
from experiment.experiments.measured import cells_of
from experiment.experiments.prediction import last_that, predict, simulator
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


def said(ran: Ran, arm: str, **changes: int) -> SimResult | Message:
    model, workload = ran.record.first(ModelPrepared), ran.record.first(WorkloadReady)
    assert model is not None
    assert workload is not None
    return predict(arm, ran.config, model, workload.model_copy(update=changes))


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
    fits, less = (said(ran, "contiguous.growing", budget_bytes=13 * 1024 - n) for n in (0, 1))
    assert isinstance(fits, SimResult)
    assert isinstance(less, Message)
    assert less.key == "error.workload.no_growth"


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


def capacity(place: Path, *requests: int) -> Ran:
    config = tiny_config(
        "capacity",
        experiment__values=list(requests),
        experiment__options={"lengths": [[5, 9], [12, 6], [3, 14]]},
        cache__max_length=32,
        cache__block_size=4,
        cache__budget=3 * 32 * 1024,
        run__arms=["paged"],
    )
    return run(config, place)


def preempted(ran: Ran, requests: int) -> Any:
    return ran.figure(ran.cell(requests=requests), "paged", "preemptions").value


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return capacity(tmp_path_factory.mktemp("tried") / "run", 2, 16)


def test_where_paging_begins_to_preempt_is_foretold_and_so_it_is(
    tried: Ran, tmp_path: Path
) -> None:
    seen = tried.finding("preempting")
    assert (seen.estimate, sides(seen)["2"]) == (16, 0)
    since = notes(seen)["preempting_foretold"]["requests"]
    assert 3 < since < 16
    both = capacity(tmp_path / "run", since - 1, since)
    assert preempted(both, since - 1) == 0
    assert preempted(both, since) > 0


@pytest.mark.parametrize("wrong", [{"calm": 0, "late": 1}, {"calm": 1, "late": None}])
def test_a_simulator_that_does_not_count_what_was_measured_foretells_nothing(
    tried: Ran, wrong: dict[str, int | None]
) -> None:
    """Of the last number another count, of the one before any."""
    asked = simulator(cells_of(tried.record))
    cells = ascending(CAPACITY, tried.result.cells)
    calm, late = (
        budget(2.0, [1, 2, 3], preemptions=0),
        budget(2.0, [1, 2, 3], preemptions=preempted(tried, 16) + (wrong["late"] or 0)),
    )
    made = [
        cell(index, dict(each.values), paged=figures).model_copy(update={"requests": each.requests})
        for index, (each, figures) in enumerate(zip(cells, (calm, late), strict=True))
    ]
    if wrong["calm"]:  # eight already preempt, which is not what is made up of them
        made[0] = made[0].model_copy(update={"requests": 15})
    found = Found(tried.config, made, simulate=asked)
    told = notes({one.id: one for one in CAPACITY.findings(found)}["preempting"])
    assert not told


def test_the_last_number_that_holds() -> None:
    assert last_that(lambda n: n < 20, 4, 24) == 19
    assert last_that(lambda n: n < 5, 4, 5) == 4
    assert last_that(lambda n: n < 4, 4, 24) is None
    assert last_that(lambda n: n < 30, 4, 24) is None
    assert last_that(lambda n: n < 20 if n in (4, 24) else None, 4, 24) is None


def context(place: Path, *tokens: int) -> Ran:
    config = tiny_config(
        "context",
        model__name="tiny-gpt2",
        experiment__values=list(tokens),
        experiment__options={"new": 4, "others": [[5, 4], [6, 4]]},
        cache__block_size=4,
        cache__budget=96 * 1024,
        run__arms=["slabs", "paged"],
    )
    return run(config, place)


def test_the_longest_context_of_all_is_foretold_and_so_it_is(tmp_path: Path) -> None:
    """Of 96 slots, three slabs have 32 each; beside two blocks and three the long one has 76."""
    tried = context(tmp_path / "tried", 20, 60, 90).finding("together")
    assert sides(tried) == {"slabs": 20, "paged": 60}
    assert sides(beside(tried)["longest_foretold"]) == {"slabs": 32, "paged": 76}
    ran = context(tmp_path / "all", 32, 33, 76, 77).finding("together")
    assert sides(ran) == sides(beside(ran)["longest_foretold"]) == {"slabs": 32, "paged": 76}
