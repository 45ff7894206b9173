"""Calibration of latency models on recorded steps, with blocked cross-validation.

    records in order of time   | 1 | 2 | 3 | 4 | 5 |      blocks, not a shuffle: neighbours in
    fold 3                     | fit | ? |  fit    |      time are correlated
    error                      over all records, each predicted by a fit without its block

Fits and errors are relative, so short steps weigh as much as long ones. Coefficients are >= 0.

Source of :func:`nnls`: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23: an
active-set method that frees the coefficient with the largest gradient and resets those that become
negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvsim.latency.roofline import (
    IDEAL,
    Efficiencies,
    Latency,
    LinearLatency,
    Overlap,
    Roofline,
    StepWork,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a recorded step computed, and its duration."""

    work: StepWork
    seconds: float


@dataclass(frozen=True, slots=True)
class FitError:
    """Prediction errors in percent of the recorded values.

    Attributes:
        bias_percent: error of the sum of all predictions; positive means too long.
    """

    count: int
    mean_percent: float
    median_percent: float
    p95_percent: float
    bias_percent: float


# Costs of a roofline: fixed, and seconds of traffic and arithmetic per ideal second.
_LEAST = np.array([0.0, 1.0, 1.0])
LatencyT = TypeVar("LatencyT", bound=Latency)


@dataclass(frozen=True, slots=True)
class Calibration(Generic[LatencyT]):
    """A fitted latency model.

    Attributes:
        latency: fitted to all records.
        fit: error on the records it was fitted to.
        held_out: cross-validation error.
        constant: cross-validation error of a constant duration, as a baseline.
    """

    latency: LatencyT
    fit: FitError
    held_out: FitError
    constant: FitError
    folds: int


def fit_error(predicted: Floats, recorded: Floats) -> FitError:
    """Compare predictions with recorded durations.

    Raises:
        ValueError: no records, or a duration that is not positive.
    """
    if not len(recorded) or recorded.min() <= 0:
        raise ValueError("recorded durations must be positive, and there must be some")
    off = 100 * np.abs(predicted - recorded) / recorded
    return FitError(
        len(recorded),
        float(off.mean()),
        float(np.median(off)),
        float(np.quantile(off, 0.95)),
        float(100 * (predicted.sum() - recorded.sum()) / recorded.sum()),
    )


def fold_blocks(count: int, folds: int) -> list[slice]:
    """Split ``count`` records into ``folds`` contiguous blocks.

    Raises:
        ValueError: fewer than two folds, or fewer records than folds.
    """
    if folds < 2 or count < folds:
        raise ValueError(f"{count} records in {folds} folds")
    edges = [count * fold // folds for fold in range(folds + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def nnls(columns: Floats, target: Floats) -> Floats:
    """Return the x >= 0 that minimises the sum of squares of ``columns @ x - target``.

    Args:
        columns: [rows, coefficients].
        target: [rows].

    Returns:
        [coefficients]; 0 for a column of zeros.

    Raises:
        ValueError: no rows, mismatched shapes, or values that are not finite.
    """
    rows, width = columns.shape
    if not rows or target.shape != (rows,):
        raise ValueError(f"{columns.shape} columns for {target.shape} values")
    if not (np.isfinite(columns).all() and np.isfinite(target).all()):
        raise ValueError("values that are not finite")
    # Normalise columns: seconds and tokens differ by many orders of magnitude.
    norms = np.linalg.norm(columns, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    found = _solve(columns / scale, target, np.zeros(width))
    return np.asarray(np.where(norms > 0, found / scale, 0.0))


def _solve(columns: Floats, target: Floats, x: Floats) -> Floats:
    freed: Bools = np.zeros(len(x), np.bool_)
    tolerance = 1e-12 * max(1.0, float(np.linalg.norm(target)))
    # Each round lowers the residual, so it terminates; the bound guards against rounding errors.
    for _ in range(3 * len(x) + 10):
        gain = columns.T @ (target - columns @ x)
        gain[freed] = -np.inf
        best = int(np.argmax(gain))
        if freed.all() or gain[best] <= tolerance:
            break
        freed[best] = True
        x = _step_back(columns, target, x, freed)
    return x


def _step_back(columns: Floats, target: Floats, x: Floats, freed: Bools) -> Floats:
    """Solve for the freed coefficients; stop where the first becomes negative and fix it at 0."""
    while freed.any():
        goal = np.zeros(len(x))
        goal[freed] = np.linalg.lstsq(columns[:, freed], target, rcond=None)[0]
        negative = freed & (goal <= 0)
        if not negative.any():
            return goal
        reach = x[negative] / (x[negative] - goal[negative])
        x = x + float(reach.min()) * (goal - x)
        freed &= np.asarray(x > 1e-15)
        x = np.where(freed, x, 0.0)
    return x


def bounded_fit(columns: Floats, target: Floats, least: Floats | float = 0.0) -> Floats:
    """Return coefficients of at least ``least`` that minimise squared errors."""
    bounds = np.broadcast_to(least, columns.shape[1:])
    return bounds + nnls(columns, target - columns @ bounds)


def relative_fit(columns: Floats, seconds: Floats, least: Floats | float = 0.0) -> Floats:
    """Return coefficients that minimise relative squared errors, see :func:`bounded_fit`."""
    return bounded_fit(columns / seconds[:, None], np.ones(len(seconds)), least)


def constant_error(seconds: Floats, folds: int) -> FitError:
    """Return the cross-validation error of the best constant, in relative squared errors."""
    predicted = np.empty(len(seconds))
    for block in fold_blocks(len(seconds), folds):
        inverse = 1 / np.delete(seconds, block)
        predicted[block] = inverse.sum() / (inverse**2).sum()
    return fit_error(predicted, seconds)


def calibrate_linear(records: Sequence[StepRecord], folds: int = 5) -> Calibration[LinearLatency]:
    """Fit a :class:`LinearLatency`; needs no model or GPU.

    Args:
        records: in order of time.
        folds: blocks that are held out in turn.

    Raises:
        ValueError: too few records, or a duration that is not positive.
    """

    def fit(part: Sequence[StepRecord]) -> LinearLatency:
        # The factors of the costs in order; shape [steps, 5].
        works = np.array([record.work for record in part], np.float64)
        columns = np.insert(works, 0, 1.0, 1)
        return LinearLatency(*map(float, relative_fit(columns, _seconds(part))))

    return _calibrate(records, folds, fit)


def calibrate_roofline(
    records: Sequence[StepRecord], ideal: Roofline, folds: int = 5
) -> Calibration[Roofline]:
    """Fit the fixed cost and efficiencies of a roofline, with and without overlap.

    One efficiency is fitted for memory traffic and one for arithmetic, each at most 1; the time of
    links between GPUs is in both. Keeps the form with the smaller fitting error, also within each
    fold.

    Raises:
        ValueError: see :func:`calibrate_linear`.
    """

    def fit(part: Sequence[StepRecord]) -> Roofline:
        seconds = _seconds(part)
        fitted = [_fit_roofline(part, seconds, ideal, form) for form in ("max", "sum")]
        return min(fitted, key=lambda each: _error(each, part).mean_percent)

    return _calibrate(records, folds, fit)


def _calibrate(
    records: Sequence[StepRecord], folds: int, fit: Callable[[Sequence[StepRecord]], LatencyT]
) -> Calibration[LatencyT]:
    seconds = _seconds(records)
    predicted = np.empty(len(records))
    for block in fold_blocks(len(records), folds):
        training = [*records[: block.start], *records[block.stop :]]
        predicted[block] = _predict(fit(training), records[block])
    latency = fit(records)
    return Calibration(
        latency,
        _error(latency, records),
        fit_error(predicted, seconds),
        constant_error(seconds, folds),
        folds,
    )


def _fit_roofline(
    records: Sequence[StepRecord], seconds: Floats, ideal: Roofline, overlap: Overlap
) -> Roofline:
    ideal = replace(ideal, fixed_s=0.0, peer_token_s=0.0, efficiencies=IDEAL)
    memory = np.array([ideal.memory_s(r.work) for r in records])
    compute = np.array([ideal.compute_s(r.work) for r in records])
    ones = np.ones(len(records))
    if overlap == "sum":
        found = relative_fit(np.stack([ones, memory, compute], 1), seconds, _LEAST)
    else:
        found = _fit_max(ones, memory, compute, seconds)
    fixed, slow_memory, slow_compute = (float(each) for each in found)
    reached = Efficiencies(1 / slow_memory, 1 / slow_memory, 1 / slow_compute, 1 / slow_compute)
    return replace(ideal, fixed_s=fixed, efficiencies=reached, overlap=overlap)


def _fit_max(ones: Floats, memory: Floats, compute: Floats, seconds: Floats) -> Floats:
    """Fit ``a + max(b memory, c compute)`` by alternating: which term binds, then coefficients.

    Starts from several splits and keeps the best result, since a round may increase the error.
    """
    best, lowest = _LEAST, np.inf
    for lean in (0.25, 0.5, 1.0, 2.0, 4.0):
        bound = memory >= lean * compute
        for _ in range(30):
            columns = np.stack([ones, memory * bound, compute * ~bound], 1)
            found = relative_fit(columns, seconds, _LEAST)
            predicted = found[0] + np.maximum(found[1] * memory, found[2] * compute)
            off = float((((predicted - seconds) / seconds) ** 2).sum())
            if off < lowest:
                best, lowest = found, off
            again = found[1] * memory >= found[2] * compute
            if (again == bound).all():
                break
            bound = again
    return best


def _seconds(records: Sequence[StepRecord]) -> Floats:
    seconds = np.array([record.seconds for record in records], np.float64)
    if not len(seconds) or not np.isfinite(seconds).all() or seconds.min() <= 0:
        raise ValueError("recorded durations must be positive, and there must be some")
    return seconds


def _predict(latency: Latency, records: Sequence[StepRecord]) -> Floats:
    return np.array([latency.seconds(record.work) for record in records])


def _error(latency: Latency, records: Sequence[StepRecord]) -> FitError:
    return fit_error(_predict(latency, records), _seconds(records))
