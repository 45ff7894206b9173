"""The player's film and the maps of slots hold exactly what the log says; one pass makes them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from busy_run import MAX_LENGTH, make_run, paged_plans, slab_plans

import experiment.events.steps
from experiment.events import Step
from experiment.record.log import Record, read_record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.step_rows import StepRow
from experiment.replay.timeline import timeline
from experiment.report.facts.series import picture
from experiment.report.page.slotmap import MapOf, map_of, states_of
from experiment.report.player.stage import film
from experiment.report.render import render
from kvsim.accounting.ledger import Ledger, PoolShape, SlotCounts
from kvsim.core.step import BlockOp, Chunk, OpKind, StepPlan


def unpack(packed: list[int]) -> list[int]:
    blocks: list[int] = []
    for entry in packed:
        blocks += range(blocks[-1] + 1, 1 - entry) if entry < 0 else [entry]
    return blocks


def played(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Tables, positions written and cached blocks after each frame, by the rules of the format."""
    tables: dict[int, list[int]] = {}
    written: dict[int, int] = {}
    rates: dict[int, int] = {}
    cached: set[int] = set()
    states = []
    for frame in data["frames"]:
        for request in frame.get("g", ()):
            for known in (tables, written, rates):
                known.pop(request, None)
        for request, kept, added, *_ in frame.get("h", ()):
            tables[request] = tables.get(request, [])[:kept] + unpack(added)
            written.setdefault(request, 0)
        rates |= dict(frame.get("w", ()))
        for request in written:
            written[request] += rates.get(request, 0)
        cached = cached - set(unpack(frame.get("u", []))) | set(unpack(frame.get("k", [])))
        states.append(
            {"tables": {r: list(t) for r, t in tables.items()}, "written": dict(written),
             "cached": set(cached)}
        )  # fmt: skip
    return states


def ledger_states(record: Record, arm: str) -> list[dict[str, Any]]:
    events = next(e for e in split_by_arm(record) if e.arm == arm)
    assert events.pool is not None
    ledger = Ledger(PoolShape(events.pool.blocks, events.pool.block_size, 4))
    states = []
    for step in events.steps:
        ledger.apply(step.plan)
        states.append(
            {"tables": {r: list(h.table) for r, h in ledger.owners.items()},
             "written": {r: h.written for r, h in ledger.owners.items()},
             "cached": set(ledger.cached)}
        )  # fmt: skip
    return states


def film_of(record: Record, arm: str, **limits: int) -> dict[str, Any]:
    made = film(next(e for e in split_by_arm(record) if e.arm == arm), arm == "slabs", **limits)
    assert made is not None
    return json.loads(json.dumps(made.data))


def test_the_run_has_everything_that_can_happen() -> None:
    kinds = {op.kind for plan in paged_plans() for op in plan.ops}
    assert kinds == set(OpKind) - {OpKind.MERGE}  # our engine finds blocks before it computes them
    assert any(plan.preempted for plan in paged_plans())


def test_blocks_that_hold_the_same_become_one_in_the_film(tmp_path: Path) -> None:
    chunks = [
        tuple(Chunk(r, start, count, True) for r in (0, 1)) for start, count in ((0, 9), (9, 1))
    ]
    record = make_run(
        tmp_path,
        [
            StepPlan(
                0,
                (BlockOp(OpKind.ALLOCATE, 0, (0, 1)), BlockOp(OpKind.ALLOCATE, 1, (2, 3))),
                chunks[0],
            ),
            StepPlan(1, (BlockOp(OpKind.MERGE, 1, (0,), (2,)),), chunks[1]),
        ],
        slab_plans(),
        size=8,
    )
    data = film_of(record, "paged")
    assert played(data) == ledger_states(record, "paged")
    assert played(data)[1]["tables"] == {0: [0, 1], 1: [0, 3]}
    assert data["frames"][1]["m"] == [["merged", 1, [0]]]


@pytest.mark.parametrize("arm", ["paged", "slabs"])
def test_every_frame_is_the_state_after_its_step(busy: Record, arm: str) -> None:
    data = film_of(busy, arm)
    assert data["every"] == 1
    assert played(data) == ledger_states(busy, arm)


@pytest.mark.parametrize("most", [100, 17, 3, 1])
def test_a_thinned_film_shows_the_exact_state_after_the_last_of_its_steps(
    busy: Record, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.replay.frames.MOST_FRAMES", most)
    data = film_of(busy, "paged")
    states = ledger_states(busy, "paged")
    every = data["every"]
    assert len(data["frames"]) <= most
    ends = [min(i + every, len(states)) - 1 for i in range(0, len(states), every)]
    assert played(data) == [states[end] for end in ends]
    assert [frame["n"] for frame in data["frames"]] == ends


def test_a_film_that_is_too_large_is_thinned(busy: Record) -> None:
    whole = len(json.dumps(film_of(busy, "paged"), separators=(",", ":")))
    data = film_of(busy, "paged", most_bytes=whole // 2)
    assert data["every"] > 1
    assert data["steps"] == len(ledger_states(busy, "paged"))


def test_counts_of_events_are_those_of_the_plans(busy: Record) -> None:
    data = film_of(busy, "paged")
    plans = paged_plans()
    for name, kind in (
        ("copied", OpKind.COPY),
        ("evicted", OpKind.EVICT),
        ("shared", OpKind.SHARE),
    ):
        said = sum(frame.get("c", {}).get(name, 0) for frame in data["frames"])
        assert (
            said == sum(len(op.blocks) for plan in plans for op in plan.ops if op.kind is kind) > 0
        )
    assert sum(f.get("c", {}).get("preempted", 0) for f in data["frames"]) == sum(
        len(plan.preempted) for plan in plans
    )


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


def test_a_step_is_decoded_and_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, paged_plans(), slab_plans())
    steps = len(read_record(tmp_path).of(Step))
    counted: Counter[str] = Counter()
    decode, apply = experiment.events.steps.plan_from_json, Ledger.apply

    def decoded(data: Any) -> StepPlan:
        counted["decoded"] += 1
        return decode(data)

    def applied(ledger: Ledger, plan: StepPlan) -> SlotCounts:
        counted["applied"] += 1
        return apply(ledger, plan)

    monkeypatch.setattr(experiment.events.steps, "plan_from_json", decoded)
    monkeypatch.setattr(Ledger, "apply", applied)
    render(tmp_path)
    assert counted["decoded"] == steps > 40
    assert steps <= counted["applied"] <= 1.1 * steps
