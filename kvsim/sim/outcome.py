"""Builds the result of a finished simulation."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import Any

import numpy as np

from kvsim.accounting.slots import PoolShape, Sharing, SlotState
from kvsim.core.prefix import PrefixStats
from kvsim.sim.arrivals import seconds
from kvsim.sim.metrics import (
    Copies,
    CountUse,
    FreeRun,
    Percentiles,
    Preemptions,
    PrefixUse,
    Requests,
    SimResult,
    Speed,
    StateUse,
    TimeSeries,
    Tokens,
)
from kvsim.sim.policies.base import (
    LARGEST_PIECE,
    NEVER_WRITTEN,
    WHOLE_PIECE,
    WRITTEN_LATER,
    Policy,
    SimulationRun,
)
from kvsim.sim.recorder import Recorder, SeriesPoint


def outcome(run: SimulationRun, policy: Policy, trace: dict[str, Any], wall_s: float) -> SimResult:
    """Return all metrics of ``run``."""
    recorder, totals, arrivals = run.recorder, run.totals, run.arrivals
    shape = run.config.shape
    span, busy = recorder.now, recorder.busy
    stats = policy.stats()
    finished = totals.finished
    return SimResult(
        config=run.config.to_json(),
        trace=trace,
        pool_slots=shape.slots,
        pool_bytes=shape.bytes,
        block_size=shape.block_size,
        span_s=seconds(span),
        busy_s=seconds(busy),
        steps=recorder.steps,
        requests=Requests(len(arrivals), finished, arrivals.refused, arrivals.without_ids),
        tokens=_tokens(run, stats),
        states=_states(recorder, shape, {state.value for state in SlotState}),
        unwritten=_states(recorder, shape, {WRITTEN_LATER, NEVER_WRITTEN}),
        running=CountUse.of(recorder.running, span, busy),
        waiting=CountUse.of(recorder.waiting, span, busy),
        preemptions=_preemptions(run, shape),
        copies=Copies(totals.copied_blocks, totals.copied_slots, totals.peak_copy_slots),
        sharing=Sharing(totals.unshared, totals.held) if totals.held else None,
        prefix=_prefix(stats) if stats is not None else None,
        free_run=_free_run(recorder),
        batches=totals.batches or None,
        **_times(run),
        requests_per_s=finished / seconds(span) if span else None,
        output_tokens_per_s=totals.output_tokens / seconds(span) if span else None,
        series=_series(recorder),
        speed=Speed(wall_s, len(arrivals) / wall_s),
        rows={
            "arrival_s": array("d", (each / 1e9 for each in arrivals.arrival_ns)),
            "scheduled_s": arrivals.scheduled,
            "first_token_s": arrivals.first_token,
            "finished_s": arrivals.finished,
            "priority": array("d", arrivals.priority),
        },
    )


def _tokens(run: SimulationRun, stats: PrefixStats | None) -> Tokens:
    """Count tokens; recomputed = computed - padding - ended rows - positions needed once."""
    totals = run.totals
    shared = totals.shared_tokens
    if stats is not None:
        shared += stats.hit_cross + stats.hit_batch
    once = totals.final_tokens - shared
    extra = totals.pad_tokens + totals.ended_tokens
    recomputed = totals.computed_tokens - extra - once
    assert recomputed >= 0, "fewer tokens were computed than requests have"
    return Tokens(
        output=totals.output_tokens,
        computed=totals.computed_tokens,
        recomputed=recomputed,
        shared=shared,
        pads=totals.pad_tokens,
        ended=totals.ended_tokens,
    )


def _states(recorder: Recorder, shape: PoolShape, known: set[str]) -> dict[str, StateUse]:
    states = {}
    for index, name in enumerate(recorder.names):
        if name not in known:
            continue
        mean = recorder.sums[index] / recorder.now if recorder.now else 0.0
        peak = recorder.peaks[index]
        states[name] = StateUse(
            mean_slots=mean,
            peak_slots=peak,
            low_slots=recorder.lows[index] or 0,
            mean_bytes=mean * shape.slot_bytes,
            peak_bytes=peak * shape.slot_bytes,
            mean_blocks=mean / shape.block_size,
            mean_percent=100 * mean / shape.slots,
            peak_percent=100 * peak / shape.slots,
        )
    return states


def _preemptions(run: SimulationRun, shape: PoolShape) -> Preemptions:
    totals = run.totals
    moved = totals.swapped_out + totals.swapped_in
    return Preemptions(
        total=totals.preempted.total(),
        requests=len(totals.preempted),
        max_of_one=max(totals.preempted.values(), default=0),
        swapped_out_blocks=totals.swapped_out,
        swapped_in_blocks=totals.swapped_in,
        swapped_bytes=moved * shape.block_bytes,
    )


def _prefix(stats: PrefixStats) -> PrefixUse:
    own = stats.hit_own / stats.requeried if stats.requeried else None
    return PrefixUse(
        stats.queried, stats.hit_cross, stats.hit_batch, stats.requeried, stats.hit_own,
        stats.hit_again, stats.hit_share, own,
    )  # fmt: skip


def _free_run(recorder: Recorder) -> FreeRun | None:
    if LARGEST_PIECE not in recorder.names or not recorder.now:
        return None
    index = recorder.names.index(LARGEST_PIECE)
    whole = recorder.sums[recorder.names.index(WHOLE_PIECE)]
    largest = recorder.sums[index]
    fragmentation = 1 - largest / whole if whole else None
    return FreeRun(largest / recorder.now, recorder.lows[index] or 0, fragmentation)


def _times(run: SimulationRun) -> dict[str, Percentiles]:
    arrivals = run.arrivals
    ended = np.frombuffer(arrivals.finished) if len(arrivals) else np.empty(0)
    which = np.flatnonzero(~np.isnan(ended))
    ended = ended[which]
    arrived = np.frombuffer(arrivals.arrival_ns, np.int64)[which] / 1e9
    scheduled = np.frombuffer(arrivals.scheduled)[which]
    first = np.frombuffer(arrivals.first_token)[which]
    more = np.frombuffer(arrivals.output, np.dtype("l"))[which] - 1
    several = more > 0
    return {
        "queue_wait_s": Percentiles.of(scheduled - arrived),
        "first_token_s": Percentiles.of(first - arrived),
        "latency_s": Percentiles.of(ended - arrived),
        "per_output_token_s": Percentiles.of((ended - first)[several] / more[several]),
    }


def _series(recorder: Recorder) -> TimeSeries:
    names = (*recorder.names, "running", "waiting")
    intervals = [(a, b) for a, b in pairwise(recorder.points) if b.now > a.now]
    return TimeSeries(
        ends_s=tuple(seconds(b.now) for _, b in intervals),
        levels={
            name: tuple(_mean(a, b, index) for a, b in intervals)
            for index, name in enumerate(names)
        },
        preempted=tuple(b.preempted - a.preempted for a, b in intervals),
    )


def _mean(one: SeriesPoint, two: SeriesPoint, index: int) -> float:
    return (two.sums[index] - one.sums[index]) / (two.now - one.now)
