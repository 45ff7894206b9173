"""Non-negative least squares.

Source: Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23: an active-set method
that frees the coefficient with the largest gradient and resets those that become negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
