"""A simulated run is the scheduler's own, step by step; jumping changes nothing."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streams import Listed, watched
from sweeps import TIMES

from kvsim.accounting.ledger import Ledger
from kvsim.accounting.slots import PoolShape
from kvsim.contiguous.planners import StaticBatchPlanner
from kvsim.core.blocks import BlockPool
from kvsim.core.request import Request
from kvsim.core.scheduler import Scheduler
from kvsim.core.step import FinishReason, OpKind, StepPlan
from kvsim.latency.roofline import Latency, LinearLatency, Roofline
from kvsim.sim.metrics import SimResult
from kvsim.sim.simulator import SIM_POLICIES, SimConfig, SimulationError, simulate
from kvsim.traces import TraceRequest
from kvsim.traces.hash_keys import HashKeys

LATENCIES: tuple[Latency, ...] = (
    LinearLatency(fixed_s=1e-6),
    LinearLatency(2e-7, 3e-8, 5e-8, 1.1e-8, 7e-10),
    # Traffic and arithmetic overtake each other within a decode.
    Roofline(1e3, 37.0, 1e5, 9e4, 1e10, 1e12, fixed_s=1e-8),
    Roofline(1e3, 37.0, 1e5, 9e3, 1e10, 1e12, 4e3, 0.25, overlap="sum"),
)


def again(plan: StepPlan, had: dict[int, set[int]]) -> int:
    """Positions that the plan computes of requests that had them before, found or computed."""
    for op in plan.ops:
        if op.kind is OpKind.SHARE and op.request is not None:
            had[op.request].update(range(op.tokens))
    count = 0
    for chunk in plan.chunks:
        now = range(chunk.start, chunk.start + chunk.count)
        count += len(had[chunk.request].intersection(now))
        had[chunk.request].update(now)
    return count


@st.composite
def streams(draw: st.DrawFn) -> Listed:
    """Bursts, pauses, and prompts of three groups that begin alike."""
    gap = st.sampled_from([0, 0, 0, 700, 4_000, 60_000])
    drawn = draw(
        st.lists(
            st.tuples(gap, st.integers(1, 30), st.integers(1, 14), st.integers(0, 2)),
            min_size=1, max_size=12,
        )
    )  # fmt: skip
    hashed = draw(st.sampled_from([None, 3, 8]))
    requests, now = [], 0
    for number, (pause, prompt, output, group) in enumerate(drawn):
        now += pause
        ids = None
        if hashed is not None:
            count = -(-prompt // hashed)
            # All but the last hash block are those of the group.
            ids = (*(100 * group + i for i in range(count - 1)), 1000 + number)
        requests.append(TraceRequest(number, now, prompt, output, ids, hashed))
    return Listed(requests)


@st.composite
def configs(draw: st.DrawFn, policy: str) -> SimConfig:
    seqs = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    return SimConfig(
        policy,  # type: ignore[arg-type]
        budget_bytes=draw(st.sampled_from([64, 72, 80, 100, 130, 400])),
        slot_bytes=1,
        max_length=draw(st.sampled_from([30, 64])),
        latency=draw(st.sampled_from(LATENCIES)),
        block_size=draw(st.sampled_from([2, 4, 8, 16])),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.sampled_from([0, 1, 5, 30, 60])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3])),
        watermark_blocks=draw(st.integers(0, 2)),
        preemption=draw(st.sampled_from(["recompute", "swap"])),
        host_blocks=draw(st.sampled_from([0, 6, 40])),
        link_bandwidth=draw(st.sampled_from([None, 3e9])),
        series_points=draw(st.sampled_from([4, 64])),
    )


def result_of(stream: Listed, config: SimConfig, jump: bool) -> SimResult | SimulationError:
    try:
        return simulate(stream, config, jump=jump)
    except SimulationError as error:
        return error


@settings(max_examples=75 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.data())
def test_a_run_in_blocks_is_that_of_the_scheduler(stream: Listed, data: st.DataObject) -> None:
    """Without a cohort, every step is planned by a plain scheduler and counted by a ledger."""
    config = data.draw(configs(data.draw(st.sampled_from(["slabs", "paged", "paged+prefix"]))))
    fast = result_of(stream, config, jump=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvsim.sim.simulator.forms_cohort", lambda _: False)
        same(fast, result_of(stream, config, jump=True))


def same(found: SimResult | SimulationError, wanted: SimResult | SimulationError) -> None:
    if isinstance(found, SimulationError) or isinstance(wanted, SimulationError):
        assert str(found) == str(wanted)
        assert "nothing_fits" in str(wanted)
        return
    assert found.to_json() == wanted.to_json()
    for name, values in found.rows.items():
        assert values.tobytes() == wanted.rows[name].tobytes()
    # What is jumped over is there all the same: all states sum to the pool, over time too.
    total = sum(state.mean_slots for state in found.states.values())
    assert total == pytest.approx(found.pool_slots if found.span_s else 0.0)


@settings(max_examples=75 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.data())
def test_jumping_changes_nothing(stream: Listed, data: st.DataObject) -> None:
    config = data.draw(configs(data.draw(st.sampled_from(SIM_POLICIES))))
    same(result_of(stream, config, jump=True), result_of(stream, config, jump=False))


@settings(max_examples=25 * TIMES, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_a_static_batch_is_that_of_the_planner(rows: list[tuple[int, int]], spare: int) -> None:
    """Its states are those of the plans of the contiguous arm, applied to a ledger."""
    slabs, length = len(rows) + spare, 16
    config = SimConfig("static", slabs * length, 1, length, max_num_batched_tokens=1)
    with pytest.MonkeyPatch.context() as patch:
        seen = watched(Listed([(0, *row) for row in rows]), config, patch)
    planner = StaticBatchPlanner(slabs, length)
    ledger = Ledger(PoolShape(slabs, length, 1))
    ends = lambda made: [(i, FinishReason.LENGTH) for i, (_, n) in enumerate(rows) if n == made]  # noqa: E731
    plan = planner.start([(i, prompt) for i, (prompt, _) in enumerate(rows)])
    for made, step in enumerate(seen.steps, 1):
        counts = {state.value: count for state, count in ledger.apply(plan).states.items()}
        assert {name: count for name, count in step.levels.items() if count} == counts
        plan = planner.decode(ends(made))
    assert len(seen.steps) == max(output for _, output in rows)


def test_the_series_keeps_exact_sums() -> None:
    stream = Listed([(i * 40_000, 5 + i % 7, 6) for i in range(60)])
    told = SimConfig("paged", 200, 1, 40, LATENCIES[1], block_size=4, series_points=8)
    few, many = simulate(stream, told), simulate(stream, replace(told, series_points=4096))
    assert len(few.series.ends_s) <= 8 < len(many.series.ends_s)
    for result in (few, many):
        ends = result.series.ends_s
        starts = (0.0, *ends[:-1])
        for name, use in result.states.items():
            means = result.series.levels[name]
            total = sum(m * (b - a) for m, a, b in zip(means, starts, ends, strict=True))
            assert total / result.span_s == pytest.approx(use.mean_slots)


@settings(max_examples=60 * TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams(), st.data(), st.integers(1, 9), st.booleans())
def test_policies_differ_in_memory_alone(
    stream: Listed, data: st.DataObject, slabs: int, ample: bool
) -> None:
    """Where memory is ample, or a piece is a slab, requests are served at the same times."""
    slots = 1 << 16 if ample else 64 * slabs
    drawn = data.draw(configs("oracle" if ample else "max"))
    reserved = replace(drawn, budget_bytes=slots, watermark_blocks=0, max_length=64)
    found = simulate(stream, reserved)
    wanted = simulate(stream, replace(reserved, policy="paged" if ample else "slabs"))
    for name, values in found.rows.items():
        assert values.tobytes() == wanted.rows[name].tobytes()
    assert (found.running, found.waiting, found.tokens) == (
        wanted.running, wanted.waiting, wanted.tokens,
    )  # fmt: skip
    assert found.states["live"].mean_slots == wanted.states["live"].mean_slots


@pytest.mark.parametrize("policy", ["paged", "static", "max"])
def test_progress_counts_requests_that_have_ended_not_those_that_came(policy: Any) -> None:
    # All come at once; one is too long for the pool and is refused.
    requests = [TraceRequest(n, 0, 4, 20) for n in range(100)] + [TraceRequest(100, 0, 400, 20)]
    config = SimConfig(policy, 64, 1, 32, block_size=4, max_num_seqs=2)
    seen: list[int] = []
    simulate(Listed(tuple(requests)), config, jump=False, ended=seen.append)
    assert seen == sorted(seen)
    assert seen[0] < 10
    assert len(set(seen)) > 10
    assert 90 < seen[-1] <= 101


@pytest.mark.parametrize("beams", [1, 2])
def test_a_simulation_ends_with_a_look_at_its_pool(
    monkeypatch: pytest.MonkeyPatch, beams: int
) -> None:
    ended: list[bool] = []

    def look(pool: BlockPool) -> None:
        ended.append(not pool.owners)

    monkeypatch.setattr(BlockPool, "check_integrity", look)
    requests = tuple(TraceRequest(n, 0, 4, 20) for n in range(5))
    simulate(Listed(requests), SimConfig("paged", 64, 1, 32, block_size=4, beams=beams))
    assert ended == [True]


def crowded(seed: int) -> tuple[Listed, SimConfig]:
    """Long prompts of one beginning, in chunks: some are preempted before they are computed."""
    draw = random.Random(seed)
    requests: list[TraceRequest] = []
    now = 0
    for number in range(draw.randint(3, 6)):
        now += draw.choice([0, 0, 0, 1, 3]) * 10**9
        prompt, output = draw.randint(12, 40), draw.randint(1, 12)
        ids = tuple(range(1, -(-prompt // 4) + 1)) if draw.random() < 0.8 else None
        requests.append(TraceRequest(number, now, prompt, output, ids, 4 if ids else None))
    config = SimConfig(
        "paged+prefix", 4 * draw.randint(13, 20), 1, 52, block_size=4, max_num_seqs=8,
        max_num_batched_tokens=draw.choice([8, 16]),
        long_prefill_token_threshold=draw.choice([2, 4, 6]),
        watermark_blocks=draw.choice([0, 0, 2]),
    )  # fmt: skip
    return Listed(requests), config


def recomputed_by_hand(stream: Listed, config: SimConfig) -> int:
    """Positions that a plain scheduler computes of requests that had them before."""
    scheduler = Scheduler(BlockPool(config.shape.blocks, config.block_size), config.scheduling)
    coming, had = list(stream), defaultdict[int, set[int]](set)
    now = count = 0
    while coming or scheduler.has_work:
        while coming and coming[0].arrival_ns <= now:
            one = coming.pop(0)
            ids, size = one.hash_ids or (), one.hash_block_size or 1
            keys = HashKeys(one.id, one.prompt_tokens, ids, size, config.block_size)
            keyed = keys if one.hash_ids else None
            scheduler.add(Request(one.id, one.prompt_tokens, one.output_tokens, keyed))
        plan = scheduler.schedule()
        count += again(plan, had)
        scheduler.complete(plan)
        now += 10**9 * bool(plan.chunks or not scheduler.has_work)
    return count


def test_what_was_never_computed_is_not_recomputed_where_others_did_it_meanwhile() -> None:
    late = 0
    for seed in range(150):
        stream, config = crowded(seed)
        result = simulate(stream, config)
        assert result.tokens.recomputed == recomputed_by_hand(stream, config)
        prefix = result.prefix
        assert prefix is not None
        late += result.tokens.shared - prefix.hit_other_requests - prefix.hit_same_step
    assert late > 100  # else nobody came back to what others had computed
