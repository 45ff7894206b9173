"""The resolved config: no ``auto`` is left of which the log knows what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from event_makers import BUDGET, PAGED, batch_arm, head, paged_arm, record

from experiment.analysis.resolved_config import resolved_config
from experiment.analysis.schema import RunSummary
from experiment.config.schema import Config, make_config
from experiment.events import (
    CellStarted,
    DecodeGraphsReady,
    Event,
    KernelChosen,
    ModelPrepared,
    RunStarted,
    WorkloadReady,
)

ASKED = Config().model_dump(mode="json")


def chosen(kernel: str, arm: str = PAGED) -> KernelChosen:
    return KernelChosen(arm=arm, device="cpu", asked="auto", kernel=kernel)


def graphs(*sizes: int, asked: str = "auto") -> DecodeGraphsReady:
    return DecodeGraphsReady(
        arm=PAGED, device="cpu", asked=asked, sizes=list(sizes), static_bytes=None, capture_s=None
    )


def resolved(events: Sequence[Event], **engine: object) -> dict[str, Any]:
    """What a run comes to that asked for nothing but settings of the engine."""
    asked = ASKED | {"engine": ASKED["engine"] | engine}
    started = [
        event.model_copy(update={"config": asked}) if isinstance(event, RunStarted) else event
        for event in events
    ]
    return resolved_config(record(started))


def autos(config: dict[str, Any]) -> list[str]:
    """Dotted keys that still say auto."""
    return [
        f"{section}.{name}"
        for section, table in config.items()
        for name, value in table.items()
        if value == "auto"
    ]


def test_no_auto_is_left_but_of_a_cache_in_the_precision_of_the_model() -> None:
    assert len(autos(ASKED)) == 6
    found = resolved([*head(), *paged_arm(), chosen("numba"), graphs()])
    assert autos(found) == ["cache.kv_dtype"]
    assert found["engine"]["kernel"] == "numba"
    assert found["engine"]["cuda_graphs"] == "off"
    assert found["model"]["dtype"] == "float32"
    assert found["run"]["device"] == "cpu"
    assert found["cache"]["budget"] == BUDGET
    assert resolved([*head(), graphs(1, 2, 4)])["engine"]["cuda_graphs"] == "on"
    compiled = resolved([*head(), graphs(1, 2, asked="compiled")])
    assert compiled["engine"]["cuda_graphs"] == "compiled"


def test_what_no_arm_needed_stays_as_it_was_asked_for() -> None:
    found = resolved([*head(), *batch_arm()])
    assert found["engine"] == ASKED["engine"]
    assert found["run"]["threads"] == 1


@pytest.mark.parametrize("other", ["torch", "triton"])
def test_arms_that_came_to_different_kernels_leave_what_was_asked_for(other: str) -> None:
    events = [*head(), chosen("numba"), chosen(other, "slabs")]
    assert resolved(events)["engine"]["kernel"] == "auto"
    same = [*head(), chosen(other), chosen(other, "slabs")]
    assert resolved(same)["engine"]["kernel"] == other


def test_cells_with_other_budgets_leave_the_one_that_was_asked_for() -> None:
    started, model, workload = head()
    assert isinstance(workload, WorkloadReady)
    assert isinstance(model, ModelPrepared)
    cells = [CellStarted(index=n, of=2, values={}, overrides={}, arms=[PAGED]) for n in (0, 1)]
    larger = workload.model_copy(update={"budget_bytes": 2 * BUDGET})
    found = resolved([started, cells[0], model, workload, cells[1], model, larger])
    assert found["cache"]["budget"] == "auto"
    assert found["cache"]["block_size"] == workload.block_size
    same = resolved([started, cells[0], model, workload, cells[1], model, workload])
    assert same["cache"]["budget"] == BUDGET


def test_a_resolved_config_can_be_asked_for_and_comes_to_itself() -> None:
    events = [*head(), *paged_arm(), chosen("numba"), graphs()]
    found = resolved(events)
    again = make_config(found).model_dump(mode="json")
    assert again == found
    assert RunSummary.model_fields["config"].annotation is Config
    asked = [
        event.model_copy(update={"config": again}) if isinstance(event, RunStarted) else event
        for event in events
    ]
    assert resolved_config(record(asked)) == again
