"""A straight line of decode steps lasts as long as its steps do, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.latency.clock import ATTOSECONDS, DecodeRun, step_clock
from kvsim.latency.roofline import BatchLatency, Latency, Roofline, StepWork

COSTS = st.floats(0, 1e-6)


@st.composite
def latencies(draw: st.DrawFn) -> Latency:
    if draw(st.booleans()):
        batches = draw(st.dictionaries(st.integers(1, 40), COSTS, max_size=4))
        costs = (draw(COSTS) for _ in range(5))
        return BatchLatency(*costs, batches=tuple(sorted(batches.items())))
    return Roofline(
        weight_bytes=draw(st.floats(0, 1e4)),
        kv_token_bytes=draw(st.floats(1, 100)),
        token_flops=draw(st.floats(1, 1e5)),
        pair_flops=draw(st.floats(1, 1e5)),
        bandwidth=1e10,
        flops=1e12,
        expert_bytes=draw(st.sampled_from([0.0, 5e3])),
        expert_share=0.25,
        fixed_s=draw(COSTS),
        overlap=draw(st.sampled_from(["max", "max", "sum"])),
    )


@given(latencies(), st.integers(1, 9), st.integers(1, 200), st.integers(1, 40))
def test_a_run_of_decodes_is_its_steps(
    latency: Latency, decodes: int, context: int, steps: int
) -> None:
    clock = step_clock(latency)
    run = clock.decode_run(decodes, context, steps)
    assert 1 <= run.steps <= steps
    durations = [
        clock.step(StepWork(0, decodes, read, read))
        for read in (context + decodes * (i + 1) for i in range(run.steps))
    ]
    assert durations == [run.first + i * run.slope for i in range(run.steps)]
    assert run.duration == sum(durations)
    assert run.moment == sum(i * each for i, each in enumerate(durations))


@given(latencies(), st.integers(0, 500), st.integers(0, 60), st.integers(0, 5000))
def test_the_clock_is_the_latency(
    latency: Latency, prefill: int, decodes: int, context: int
) -> None:
    work = StepWork(prefill, decodes, context + decodes, 3 * context)
    measured = step_clock(latency).step(work) / ATTOSECONDS
    assert measured == pytest.approx(latency.seconds(work), rel=1e-8, abs=1e-14)


@given(st.integers(1, 30), st.integers(1, 50), st.integers(0, 9), st.integers(1, 3000))
def test_a_run_is_cut_at_the_first_step_that_reaches_a_moment(
    steps: int, first: int, slope: int, span: int
) -> None:
    run = DecodeRun(steps, first, slope)
    cut = run.until(span)
    assert cut.steps == steps or cut.duration >= span
    assert cut.steps == 1 or cut.duration_of(cut.steps - 1) < span
