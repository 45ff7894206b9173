"""Calibration by replay: step costs from the times of requests, for runs that record no steps.

    costs ─► replay of the recorded arrivals ─► seconds to the first and the last token
      ▲                                            │
      └──── least squares, bounded ◄── recorded ───┘

A request's seconds are those of all steps in which it waits, runs or is preempted, so a stall is
explained by the steps that others take meanwhile and is no cost of a step. The replay needs the
pool and the limits of the run.

Source: Levenberg-Marquardt, Nocedal and Wright, "Numerical Optimization", 2006, section 10.3, with
slopes from finite differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from kvsim.base.coded_error import CodedError
from kvsim.latency.calibrate import (
    FitError,
    Floats,
    bounded_fit,
    constant_error,
    fit_error,
    fold_blocks,
)
from kvsim.latency.request_times import RequestRecord
from kvsim.latency.roofline import BatchLatency, LinearLatency, StepWork
from kvsim.latency.token_times import fit_tokens, has_token_times
from kvsim.sim.config import SimConfig
from kvsim.sim.simulator import simulate
from kvsim.traces.types import NANOSECONDS, TraceInfo, TraceRequest

_ROUNDS = 16
# Damping with which a step changes nothing.
_STUCK = 1e3
# Change of a cost for its slope, as a share of the time of all steps: more than what a single
# preemption more or less does.
_CHANGE = 0.03
# Weight of the means and of the span against that of all requests.
_WEIGHT = 10.0
# Weight of the costs that the times of tokens show.
_PRIOR = 3.0
# Requests whose median counts.
_ENOUGH = 5


# Changes per share: of the deviations, and of the seconds of each request.
Slopes = tuple[Floats, Floats]


class PoolTooSmallError(CodedError):
    """The pool does not hold one of the recorded requests.

    Attributes:
        params: its ``blocks``.
    """


@dataclass(frozen=True, slots=True)
class ReplayError:
    """Errors of a replay in percent of the recorded value; positive means too long.

    Attributes:
        span: from the first arrival to the last token.
        first_token, latency: of the means over requests.
    """

    span: float
    first_token: float
    latency: float


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """Errors of the seconds of each request.

    Attributes:
        fit: of the replay. ``held_out``: by cross-validation, with the slopes of the last round.
        constant: cross-validation error of a constant duration, as a baseline.
    """

    fit: FitError
    held_out: FitError
    constant: FitError


@dataclass(frozen=True, slots=True)
class ReplayFit:
    """Costs of a step, and the errors of the replay under them.

    Attributes:
        first_token, latency: of each request's seconds to its first and its last token.
        preemptions: in the replay.
    """

    costs: LinearLatency
    replay: ReplayError
    first_token: RequestErrors
    latency: RequestErrors
    preemptions: int


def fit_replay(
    records: Sequence[RequestRecord],
    config: SimConfig,
    least: LinearLatency = LinearLatency(),  # noqa: B008
    folds: int = 5,
) -> ReplayFit:
    """Fit the costs of a step so that the replay takes as long as the recorded run.

    Args:
        records: of all requests of the run. What is cached of their prompts is one prefix of all.
        config: the run's pool and limits; its latency is replaced.
        least: bounds of the costs.

    Raises:
        ValueError: too few records.
        PoolTooSmallError, kvsim.sim.config.SimulationError: the run cannot be replayed.
    """
    known = fit_tokens(records, _values(least))
    run = _Run(records, config, known.batches)
    blocks = fold_blocks(len(records), folds)
    scale = run.scale()
    bounds = _values(least) / scale
    start = _values(known) / scale
    if has_token_times(records):
        start[-1] = bounds[-1] = run.host_s(known) / scale[-1]
        run.prior = start
    now = _Replay(run, np.maximum(bounds, start), scale)
    slopes, damping = now.slopes(), 0.1
    for _ in range(_ROUNDS):
        trial = _Replay(run, now.improved(slopes, bounds, damping), scale)
        if trial.loss < now.loss:
            now, damping = trial, damping / 4
            slopes = now.slopes()
        elif damping > _STUCK:
            break
        else:
            damping *= 4
    held_out = np.empty_like(now.seconds)
    for block in blocks:
        without = now.improved(slopes, bounds, 0.0, left_out=block)
        held_out[:, block] = now.predicted(slopes, without)[:, block]
    first_token, latency = (
        RequestErrors(fit_error(fit, truly), fit_error(out, truly), constant_error(truly, folds))
        for fit, out, truly in zip(now.seconds, held_out, run.seconds, strict=True)
    )
    return ReplayFit(now.costs, now.error, first_token, latency, now.preemptions)


def replay_error(
    records: Sequence[RequestRecord], config: SimConfig, costs: LinearLatency
) -> ReplayError:
    """Compare a replay under given costs with a recorded run.

    Raises:
        PoolTooSmallError, kvsim.sim.config.SimulationError: the run cannot be replayed.
    """
    values = _values(costs)
    batches = costs.batches if isinstance(costs, BatchLatency) else ()
    return _Replay(_Run(records, config, batches), values, np.ones(len(values))).error


def _values(costs: LinearLatency) -> Floats:
    return np.array([getattr(costs, each.name) for each in fields(LinearLatency)])


class _Run:
    """A recorded run: its requests in order of arrival, as a stream and as columns."""

    def __init__(
        self,
        records: Sequence[RequestRecord],
        config: SimConfig,
        batches: tuple[tuple[float, float], ...],
    ) -> None:
        self.batches = batches
        self.config = replace(config, series_points=2)
        self.records = ordered = sorted(records, key=lambda record: record.queued_s)
        self._lengths = [(each.prompt_tokens, each.output_tokens) for each in ordered]
        self._computed = [each.computed_tokens for each in ordered]
        shared = max(each.cached_tokens for each in ordered) // config.block_size
        self._prefix = (tuple(range(shared)), config.block_size)
        queued, first, last = np.array([each[2:5] for each in ordered]).T
        self._arrivals = np.rint((queued - queued[0]) * NANOSECONDS).astype(np.int64)
        # Seconds to the first and to the last token; shape [2, requests].
        self.seconds = np.stack([first, last]) - queued
        self.prior: Floats | None = None
        self.span = float(last.max() - queued[0])
        self.info = TraceInfo("records", "generated", "declared", None, "none", None, "none")

    def __iter__(self) -> Iterator[TraceRequest]:
        for row, lengths in enumerate(self._lengths):
            yield TraceRequest(row, int(self._arrivals[row]), *lengths, *self._prefix)

    def scale(self) -> Floats:
        """Return for each cost the value that explains the time of decoding, or the first token."""
        prompts, outputs = np.array(self._lengths, np.float64).T
        contexts = (prompts + outputs / 2) * outputs
        decoding = float((self.seconds[1] - self.seconds[0]).sum()) or self.span
        computed = sum(self._computed)
        work = (outputs.sum(), computed, outputs.sum(), contexts.sum(), contexts.sum())
        return np.append(decoding / np.array(work), self.seconds[0].mean())

    def host_s(self, costs: LinearLatency) -> float:
        """Return what first tokens take beyond their step: the median of requests on their own.

        The clock of a client starts before the engine has a request. With few on their own: of the
        fastest request, since others wait, too.
        """
        steps = [costs.seconds(StepWork(computed)) for computed in self._computed]
        beyond = self.seconds[0] - steps
        queued, first, last = np.array([each[2:5] for each in self.records]).T
        alone = np.append(-np.inf, np.maximum.accumulate(last)[:-1]) < queued
        alone &= first < np.append(queued[1:], np.inf)
        host = np.median(beyond[alone]) if alone.sum() >= _ENOUGH else beyond.min()
        return max(0.0, float(host))


class _Replay:
    """One replay, and how far it is from the recorded run."""

    def __init__(self, run: _Run, shares: Floats, scale: Floats) -> None:
        self._run, self._shares, self._scale = run, shares, scale
        costs = (shares * scale).tolist()
        self.costs = LinearLatency(*costs)
        if run.batches:
            self.costs = replace(BatchLatency(*costs), batches=run.batches)
        found = simulate(run, replace(run.config, latency=self.costs))
        if found.requests.finished < found.requests.arrived:
            raise PoolTooSmallError("pool", blocks=run.config.shape.blocks)
        self.preemptions = found.preemptions.total
        rows = {name: np.array(values) for name, values in found.rows.items()}
        self.seconds = np.stack([rows["first_token_s"], rows["finished_s"]]) - rows["arrival_s"]
        self._span = found.span_s
        self._off = self._deviations()
        self.loss = float((self._off**2).sum())

    @property
    def error(self) -> ReplayError:
        """Errors of the span and of the means."""
        means = self.seconds.mean(1) / self._run.seconds.mean(1)
        return ReplayError(*(100 * float(x - 1) for x in (self._span / self._run.span, *means)))

    def _deviations(self) -> Floats:
        """Relative to the recorded means: of each request, of the means, and of the span."""
        recorded = self._run.seconds
        off = (self.seconds - recorded) / recorded.mean(1, keepdims=True)
        of_all = [*off.mean(1), self._span / self._run.span - 1]
        prior = self._run.prior
        kept = np.zeros(0) if prior is None else _PRIOR * (self._shares - prior)
        parts = (off.ravel() / np.sqrt(off.shape[1]), np.multiply(_WEIGHT, of_all), kept)
        return np.concatenate(parts)

    def slopes(self) -> Slopes:
        """Return how deviations and seconds change with each share."""
        # The host's time, which is last, is no cost of a step and stays.
        steps = _CHANGE * np.diag([1.0] * (len(self._shares) - 1) + [0.0])
        others = [_Replay(self._run, self._shares + step, self._scale) for step in steps]
        return (
            np.stack([each._off - self._off for each in others], -1) / _CHANGE,
            np.stack([each.seconds - self.seconds for each in others], -1) / _CHANGE,
        )

    def improved(
        self, slopes: Slopes, bounds: Floats, damping: float, left_out: slice | None = None
    ) -> Floats:
        """Return the shares of a damped least-squares step.

        Args:
            left_out: requests that are not fitted to, nor are the means and the span then.
        """
        columns, target = slopes[0], slopes[0] @ self._shares - self._off
        if left_out is not None:
            used = np.ones(len(target), bool)
            requests = used[: self.seconds.size].reshape(self.seconds.shape)
            requests[:, left_out] = False
            used[self.seconds.size : self.seconds.size + 3] = False
            columns, target = columns[used], target[used]
        stay = np.sqrt(damping) * np.diag(np.linalg.norm(columns, axis=0))
        return bounded_fit(
            np.concatenate([columns, stay]), np.concatenate([target, stay @ self._shares]), bounds
        )

    def predicted(self, slopes: Slopes, shares: Floats) -> Floats:
        """Return the seconds under other shares, to first order; shape [2, requests]."""
        return np.asarray(self.seconds + slopes[1] @ (shares - self._shares))
