"""Phases of requests in time."""

from __future__ import annotations

import pytest
from event_makers import (
    PAGED,
    PROMPTS,
    SLOT_BYTES,
    TOKENS,
    arm_events,
    head,
    plans_of,
    record,
)

from experiment.events import WorkloadReady
from experiment.report.facts.lifelines import lifelines
from kvsim.accounting.ledger import PoolShape
from kvsim.core.limits import SchedulerConfig


@pytest.mark.parametrize(("arrival", "waits_s"), [(0, 3.0), (2.5, 0.5)])
def test_a_request_waits_from_the_beginning_or_from_its_arrival(
    arrival: float, waits_s: float
) -> None:
    """One request at a time, three steps of a second each; half a second of wait is logged."""
    plans = plans_of([(prompt, 3) for prompt in PROMPTS], 8, 2, SchedulerConfig(max_num_seqs=1))
    events = [*head(), *arm_events(PAGED, PoolShape(8, 2, SLOT_BYTES), plans, TOKENS)]

    def come(workload: WorkloadReady) -> WorkloadReady:
        first, second = workload.requests
        second = second.model_copy(update={"arrival": arrival})
        return workload.model_copy(update={"requests": [first, second]})

    events = [come(event) if isinstance(event, WorkloadReady) else event for event in events]
    (arm,) = lifelines(record(events))
    assert arm.lines[1].seconds("queued") == waits_s
    assert arm.lines[1].seconds("decode") == arm.lines[0].seconds("decode") > 0
