"""Two classes of requests, urgent ones and the others: their waiting times."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

from experiment.events import RequestFinished
from experiment.experiments.measured import Measured
from kvsim.sim.metrics import SimResult

# Priorities of the two classes.
URGENT, PATIENT = 0, 1
# Tolerance for rounding: times of the virtual clock are integers plus a fraction.
_ROUNDING = 1e-6


def of_class(
    urgent: bool, value: Callable[[RequestFinished], float | None]
) -> Callable[[Measured], float | None]:
    """Mean over the urgent requests, or over the others; None without any."""

    def measure(m: Measured) -> float | None:
        ranks = {request.id: request.priority for request in m.workload.requests}
        mine = (r for r in m.requests if (ranks[r.request] == URGENT) is urgent)
        known = [v for r in mine if (v := value(r)) is not None]
        return fmean(known) if known else None

    return measure


def steps_to_first(request: RequestFinished) -> int | None:
    """Steps from a request's arrival to its first token, inclusive."""
    if request.first_token_step is None:
        return None
    return request.first_token_step - (request.arrival_step or 0) + 1


def predicted_steps(urgent: bool) -> Callable[[SimResult], float | None]:
    """Mean of :func:`steps_to_first` in a simulation whose steps take a second each."""

    def predict(s: SimResult) -> float | None:
        ranks = s.rows["priority"]
        waits = [
            # Count from the first step that starts at or after the arrival.
            math.floor(first - came + _ROUNDING)
            for first, came, rank in zip(
                s.rows["first_token_s"], s.rows["arrival_s"], ranks, strict=True
            )
            if (rank == URGENT) is urgent and not math.isnan(first)
        ]
        return fmean(waits) if waits else None

    return predict
