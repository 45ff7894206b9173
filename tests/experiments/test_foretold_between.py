"""What the simulator says of numbers between those that were tried, run for real beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Ran, run, tiny_config
from made_up import beside, budget, cell, found_of, notes, sides

from experiment.analysis.experiment_results import Finding
from experiment.experiments.capacity import CAPACITY
from experiment.experiments.evaluate import ascending
from experiment.experiments.found import Found
from experiment.experiments.measured import cells_of
from experiment.experiments.prediction import last_that, simulator
from experiment.experiments.registry import find_experiment


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


def one_of(ran: Ran, name: str) -> Finding:
    return next(each for each in ran.result.findings if each.id == name)


def preempted(ran: Ran, requests: int) -> Any:
    return ran.figure(ran.cell(requests=requests), "paged", "preemptions").value


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return capacity(tmp_path_factory.mktemp("tried") / "run", 2, 16)


def test_where_paging_begins_to_preempt_is_foretold_and_so_it_is(
    tried: Ran, tmp_path: Path
) -> None:
    seen = one_of(tried, "preempting")
    assert (seen.estimate, sides(seen)["2"]) == (16, 0)
    since = notes(seen)["preempting_foretold"]["requests"]
    assert 3 < since < 16
    both = capacity(tmp_path / "run", since - 1, since)
    assert preempted(both, since - 1) == 0
    assert preempted(both, since) > 0


def test_a_first_number_that_preempts_is_foretold_from_none_on(tried: Ran, tmp_path: Path) -> None:
    told = notes(one_of(capacity(tmp_path / "run", 16), "preempting"))
    assert told == notes(one_of(tried, "preempting"))


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


def test_without_a_simulator_nothing_is_foretold() -> None:
    found = found_of("capacity", cell(0, {"requests": 4}, paged=budget(2.0, [1], preemptions=1)))
    seen = {one.id: one for one in find_experiment("capacity").findings(found)}
    assert not notes(seen["preempting"])
    assert replace(found).simulate is None


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
    tried = one_of(context(tmp_path / "tried", 20, 60, 90), "together")
    assert sides(tried) == {"slabs": 20, "paged": 60}
    assert sides(beside(tried)["longest_foretold"]) == {"slabs": 32, "paged": 76}
    ran = one_of(context(tmp_path / "all", 32, 33, 76, 77), "together")
    assert sides(ran) == sides(beside(ran)["longest_foretold"]) == {"slabs": 32, "paged": 76}


def test_a_longest_context_that_nothing_brackets_is_not_foretold(tmp_path: Path) -> None:
    ran = context(tmp_path / "run", 20, 60)
    assert not one_of(ran, "together").beside
    made = [one.model_copy(update={"values": {"context": n}})
            for one, n in zip(ran.result.cells, (20, 80), strict=True)]  # fmt: skip
    longer = made[1].model_copy(update={"values": {"context": 90}, "arms": []})
    asked = simulator(cells_of(ran.record))
    found = Found(ran.config, [*made, longer], simulate=asked)
    assert not find_experiment("context").findings(found)[0].beside
