"""What must be the same in every repeat, and what is said where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import Ran, run, tiny_config

from experiment.events import EngineStep, PrefixCacheUsed, RepeatFinished, Stage, StageEntered
from experiment.experiments.evaluate import _arm_problems
from experiment.experiments.figures import FIGURES
from experiment.experiments.measured import ArmMeasured, Measured, cells_of, measure
from experiment.text import LANGUAGES, Translator

ARMS = ["contiguous.growing", "paged", "transformers_paged"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two questions on the same table, twice behind the warm-up."""
    config = tiny_config(
        "capacity",
        experiment__values=[3],
        experiment__options={"lengths": [[6, 10], [20, 14], [3, 24]]},
        experiment__repeats=2,
        cache__max_length=64,
        cache__block_size=16,
        cache__budget=4 * 64 * 1024,
        engine__prefix_caching=True,
        run__arms=ARMS,
    )
    return run(config, tmp_path_factory.mktemp("repeats") / "run")


def changed(ran: Ran, arm: str, change: Callable[[Measured], Measured]) -> list[str]:
    """What is said where the last repeat of an arm counts otherwise."""
    (cell,) = cells_of(ran.record)
    one = next(each for each in measure(cell) if each.result.arm == arm)
    other = ArmMeasured(one.result, one.warm_up, [*one.repeats[:-1], change(one.repeats[-1])])
    assert _arm_problems([FIGURES["steps"]], one) == []
    problems = _arm_problems([FIGURES["steps"]], other)
    for problem in problems:
        assert all("{" not in Translator(lang).message(problem) for lang in LANGUAGES)
    return [problem.params.get("figure", {"key": "step"})["key"] for problem in problems]


def test_bytes_that_a_growing_cache_copied_are_the_same_in_every_repeat(ran: Ran) -> None:
    def more(one: Measured) -> Measured:
        first, second, *others = one.events.moved
        assert first.bytes > 0
        # As many in all, for other requests.
        first = first.model_copy(update={"bytes": first.bytes + 1})
        second = second.model_copy(update={"bytes": second.bytes - 1})
        return replace(one, events=replace(one.events, moved=[first, second, *others]))

    assert changed(ran, "contiguous.growing", more) == ["metric.moved_bytes"]


@pytest.mark.parametrize("name", ["queried", "hit_own"])
def test_what_a_prefix_cache_was_asked_for_is_the_same_in_every_repeat(ran: Ran, name: str) -> None:
    """Hits are a figure; what was looked up, and found behind a preemption, is none."""

    def more(one: Measured) -> Measured:
        used = one.events.prefix
        assert isinstance(used, PrefixCacheUsed)
        more = used.model_copy(update={name: getattr(used, name) + 1})
        return replace(one, events=replace(one.events, prefix=more))

    assert changed(ran, "paged", more) == ["experiments.axis.prefix_cache"]


def test_another_engines_own_statistics_are_the_same_in_every_repeat(ran: Ran) -> None:
    step = EngineStep(arm="vllm", step=0, used_blocks=1, table_blocks=1, running=1, waiting=0,
                      preempted=0, prefix_queries=9, prefix_hits=0)  # fmt: skip

    def more(one: Measured) -> Measured:
        return replace(one, events=replace(one.events, prefix=None, engine_steps=[step]))

    assert changed(ran, "contiguous.growing", more) == ["experiments.axis.prefix_cache"]


@pytest.mark.parametrize(
    ("column", "told"), [("held_blocks", True), ("running", True), ("free", False)]
)
@pytest.mark.parametrize("arm", ["paged", "transformers_paged"])
def test_steps_of_every_engine_are_the_same_in_every_repeat(
    ran: Ran, arm: str, column: str, told: bool
) -> None:
    """More in one step and less in the next is the same in sum; free slots are an engine's own."""

    def swapped(one: Measured) -> Measured:
        rows: list[Any] = list(one.rows)
        for at, by in ((0, 1), (1, -1)):
            rows[at] = rows[at].model_copy(update={column: getattr(rows[at], column) + by})
        return replace(one, rows=rows)

    assert (changed(ran, arm, swapped) == ["step"]) is (told or arm == "paged")


def test_memory_is_read_in_the_warm_up_alone(ran: Ran) -> None:
    """The page says so of the repeats: a reading makes an arm stand still."""
    (cell,) = cells_of(ran.record)
    over: set[str] = set()
    read: set[tuple[str, int | None]] = set()
    for event in cell.events:
        if isinstance(event, RepeatFinished):
            over.add(event.arm)
        elif isinstance(event, StageEntered) and event.stage is Stage.REQUEST_DONE:
            assert event.arm not in over, event
            read.add((event.arm, event.request))
    assert over == set(ARMS)
    assert read == {(arm, request) for arm in ARMS for request in range(3)}


def test_a_run_of_them_contradicts_nothing(ran: Ran, tmp_path: Path) -> None:
    assert ran.result.problems == []
    assert {arm.arm for cell in ran.result.cells for arm in cell.arms} == set(ARMS)
