"""The picture of a pool at one moment paints as many slots of each state as the ledger counts."""

from __future__ import annotations

from collections import Counter

import pytest
from busy_run import MAX_LENGTH

from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import timeline
from experiment.report.facts.series import picture
from experiment.report.page.slotmap import MapOf, map_of, states_of


def rows_of(busy: Record, arm: str) -> list[StepRow]:
    """Counts of the ledger after each step of an arm."""
    return timeline(next(events for events in split_by_arm(busy) if events.arm == arm))[0]


def drawn(busy: Record, arm: str, step: int) -> MapOf:
    """The map of an arm after a step."""
    seen = picture(busy, arm, step)
    assert seen is not None
    one = map_of(arm, seen, MAX_LENGTH)
    assert one is not None
    return one


@pytest.mark.parametrize("arm", ["slabs", "paged"])
def test_the_map_paints_as_many_slots_of_each_state_as_the_ledger_counts(
    busy: Record, arm: str
) -> None:
    seen: set[str] = set()
    for row in rows_of(busy, arm)[::3]:
        painted: Counter[str] = Counter()
        for piece in drawn(busy, arm, row.step).pieces:
            painted[piece.state.value] += piece.count
        wanted = {state: getattr(row, state) for state in ("live", "unwritten", "cached", "free")}
        assert painted == {state: count for state, count in wanted.items() if count}, row.step
        seen |= painted.keys()
    assert seen == {"live", "unwritten", "free"} | ({"cached"} if arm == "paged" else set())


def test_the_legend_of_the_map_has_what_is_painted_and_nothing_else(busy: Record) -> None:
    rows = [row for row in rows_of(busy, "paged") if row.live and row.unwritten and row.free]
    with_cached = next(row for row in rows if row.cached)
    without = next(row for row in rows if not row.cached)
    assert states_of([drawn(busy, "paged", without.step)]) == ["live", "unwritten", "free"]
    both = [drawn(busy, "paged", row.step) for row in (without, with_cached)]
    assert states_of(both) == ["live", "unwritten", "cached", "free"]
