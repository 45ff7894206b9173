"""Simulates a stream of requests under one policy, on a virtual clock.

    RequestStream ─► ArrivalQueue ─► Policy ── step ──► Recorder ─► SimResult
                                      │  ▲                 │
                                      ▼  │ duration        ▼ now
                                     StepClock      arrivals up to now

Time advances in steps, and while there is no work. A step starts when the previous one ends;
requests that arrived by then are queued. The pool's state during a step is that after its plan:
blocks allocated, tokens written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from kvsim.contiguous.reservation import POLICIES
from kvsim.latency.clock import StepClock, attoseconds
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.arrivals import ArrivalQueue
from kvsim.sim.config import SIM_POLICIES, PolicyName, SimConfig, SimulationError, catalogue_config
from kvsim.sim.fast.cohort import forms_cohort
from kvsim.sim.metrics import SimResult, outcome
from kvsim.sim.policies.base import Policy, SimulationRun
from kvsim.sim.policies.batch import Growing, Static
from kvsim.sim.policies.forked import Forked
from kvsim.sim.policies.paged import Paged
from kvsim.sim.policies.reserved import Reserved
from kvsim.sim.recorder import Recorder
from kvsim.traces.types import RequestStream

__all__ = [
    "SIM_POLICIES",
    "PolicyName",
    "SimConfig",
    "SimResult",
    "SimulationError",
    "catalogue_config",
    "simulate",
]


Ended = Callable[[int], None]
# Steps between two progress checks.
_CHECK_EVERY = 64


def simulate(
    stream: RequestStream, config: SimConfig, *, jump: bool = True, ended: Ended | None = None
) -> SimResult:
    """Simulate every request of ``stream`` to its end.

    Args:
        jump: fast-forward over decode-only steps; the result is identical.
        ended: called now and then with the number of finished and refused requests.

    Raises:
        SimulationError: ``nothing_fits``: every request was refused; ``livelock``; ``bad_option``.
        kvsim.traces.TraceError: the stream cannot be read.
        TallyError: the states do not sum to the pool; an internal error.
        kvsim.core.blocks.PoolError: the records of the pool disagree at the end; likewise.
    """
    began = time.perf_counter()
    requests = iter(stream)
    first = next(requests, None)
    policy = make_policy(config, (config.samples or first.samples) if first else 1)
    ahead = (first,) if first else ()
    keep_ids = config.policy == "paged+prefix"
    delay = config.latency.request_s if isinstance(config.latency, LinearLatency) else 0.0
    arrivals = ArrivalQueue(
        chain(ahead, requests), policy.check, keep_ids, config.samples, attoseconds(delay)
    )
    recorder = Recorder(policy.names, config.series_points)
    run = SimulationRun(config, arrivals, recorder, StepClock(config.latency), jump)
    policy.begin(run)
    _drive(run, policy, ended)
    if isinstance(policy, Paged | Forked):
        policy.pool.check_integrity()
    recorder.add_point()
    wall_s = time.perf_counter() - began
    return outcome(run, policy, stream.info.to_json(), wall_s)


def make_policy(config: SimConfig, samples: int = 1) -> Policy:
    """Return the policy of ``config`` for requests with ``samples`` samples."""
    if config.policy == "static":
        return Static(config)
    if config.policy == "growing":
        return Growing(config)
    if config.policy in POLICIES:
        return Reserved(config)
    forks = config.beams > 1 or (samples > 1 and config.paged)
    if forks or not forms_cohort(config.scheduling):
        return Forked(config)
    return Paged(config)


def _drive(run: SimulationRun, policy: Policy, ended: Ended | None) -> None:
    arrivals, recorder = run.arrivals, run.recorder
    steps = 0
    while True:
        if arrivals.next_arrival_at is not None and arrivals.next_arrival_at <= recorder.now:
            arrivals.read_until(recorder.now)
        if arrivals.waiting or policy.has_work:
            policy.step()
            steps += 1
            if not steps % _CHECK_EVERY:
                run.check_progress(_CHECK_EVERY)
                if ended is not None:
                    ended(run.totals.finished + arrivals.num_refused)
        elif arrivals.next_arrival_at is None:
            break
        else:
            recorder.idle(arrivals.next_arrival_at, policy.levels())
    _check_end(run)


def _check_end(run: SimulationRun) -> None:
    arrivals = run.arrivals
    refused = arrivals.refused
    if len(arrivals) and arrivals.num_refused == len(arrivals):
        first = refused[0]
        raise SimulationError(
            "nothing_fits", requests=len(arrivals), reason=first.reason,
            needed=first.needed, available=first.available,
        )  # fmt: skip
    assert run.totals.finished + arrivals.num_refused == len(arrivals), "a request is lost"
