"""The simulator's clock: integer attoseconds, so sums do not depend on grouping.

    seconds of a Latency   ─► coefficients, each rounded once to 1e-18 s
    one step               ─► an integer
    k decode-only steps    ─► first + (first + slope) + (first + 2 slope) ... in closed form

Rounding changes a real coefficient by less than 1e-8. A run that fast-forwards over decode-only
steps ends at exactly the same time as one that does not.
"""

from __future__ import annotations

from functools import cache
from math import sqrt
from typing import NamedTuple

from kvsim.latency.roofline import Latency, Roofline, StepWork

ATTOSECONDS = 10**18
PER_NANOSECOND = 10**9


def attoseconds(seconds: float) -> int:
    """Round to attoseconds."""
    return round(seconds * ATTOSECONDS)


class DecodeRun(NamedTuple):
    """Consecutive steps that decode the same requests: step ``i`` takes ``first + i * slope``."""

    steps: int
    first: int
    slope: int

    @property
    def duration(self) -> int:
        """Duration of all steps in attoseconds."""
        return self.duration_of(self.steps)

    def duration_of(self, steps: int) -> int:
        """Return the duration of the first ``steps`` steps in attoseconds."""
        return steps * self.first + self.slope * (steps * (steps - 1) // 2)

    @property
    def moment(self) -> int:
        """Sum of ``i`` x duration of step ``i``: the time integral of a level that grows by 1."""
        k = self.steps
        ones = k * (k - 1) // 2
        squares = (k - 1) * k * (2 * k - 1) // 6
        return self.first * ones + self.slope * squares

    def until(self, span: int) -> DecodeRun:
        """Return the shortest prefix that lasts at least ``span``, or the whole run."""
        steps, first, slope = self
        if steps == 1 or span > self.duration_of(steps - 1):
            return self
        # Root of the quadratic in floating point, then corrected to the exact integer.
        span = max(span, 0)
        half = first - slope / 2
        root = half + sqrt(half * half + 2.0 * slope * span)
        low = min(int(2 * span / root) + 1, steps) if root > 0 else 1
        while low > 1 and self.duration_of(low - 1) >= span:
            low -= 1
        while self.duration_of(low) < span:
            low += 1
        return DecodeRun(low, first, slope)


class StepClock:
    """Durations in attoseconds under a latency model.

    ``memory`` of a step are its weights (or what its batch costs), tokens and slots read,
    ``compute`` its arithmetic; a roofline may overlap the two.
    """

    def __init__(self, latency: Latency) -> None:
        self._fixed, self._peer = attoseconds(latency.fixed_s), 0
        self._is_roofline = isinstance(latency, Roofline)
        self._overlaps = isinstance(latency, Roofline) and latency.overlap == "max"
        if isinstance(latency, Roofline):
            share, left_out = latency.efficiencies, 1 - latency.expert_share
            bandwidth = latency.bandwidth * share.weights
            weights, experts = latency.weight_bytes / bandwidth, latency.expert_bytes / bandwidth
            self._batch = cache(lambda n: attoseconds(weights + experts * (1 - left_out**n)))
            self._kv = attoseconds(latency.kv_token_bytes / (latency.bandwidth * share.cache))
            self._prefill = self._decode = self._kv
            self._token = attoseconds(latency.token_flops / (latency.flops * share.products))
            self._pair = attoseconds(latency.pair_flops / (latency.flops * share.attention))
            self._peer = attoseconds(latency.peer_token_s)
        else:
            self._batch = cache(lambda n: attoseconds(latency.batch_s(n)))
            self._kv = attoseconds(latency.per_kv_token_s)
            self._prefill = attoseconds(latency.per_prefill_token_s)
            self._decode = attoseconds(latency.per_decode_token_s)
            self._token, self._pair = 0, attoseconds(latency.per_pair_s)

    def step(self, work: StepWork) -> int:
        """Return the duration of one step; 0 without tokens."""
        prefill, decodes, read, pairs = work
        tokens = prefill + decodes
        if not tokens:
            return 0
        memory = self._batch(tokens if self._is_roofline else decodes)
        memory += self._prefill * prefill + self._decode * decodes + self._kv * read
        compute = self._token * tokens + self._pair * pairs
        fixed = self._fixed + self._peer * tokens
        return fixed + (max(memory, compute) if self._overlaps else memory + compute)

    def decode_run(self, decodes: int, context: int, steps: int) -> DecodeRun:
        """Return a prefix of ``steps`` steps with linear durations, at least one step.

        Args:
            decodes: requests that get one token in each step.
            context: positions written before the first step, over all requests.
            steps: at least 1.
        """
        read = context + decodes
        memory = self._batch(decodes) + self._decode * decodes + self._kv * read
        compute = self._token * decodes + self._pair * read
        fixed = self._fixed + self._peer * decodes
        line, slope, other, its = memory, self._kv * decodes, compute, self._pair * decodes
        if not self._overlaps:
            return DecodeRun(steps, fixed + line + other, slope + its)
        if line < other:
            line, slope, other, its = other, its, line, slope
        last = steps - 1
        if line + last * slope < other + last * its:
            # The other term becomes larger after this many steps.
            steps = (line - other) // (its - slope) + 1
        return DecodeRun(steps, fixed + line, slope)
