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
from typing import NamedTuple, Protocol

from kvsim.latency.roofline import Latency, LinearLatency, Roofline, StepWork

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


class StepClock(Protocol):
    """Durations in attoseconds."""

    def step(self, work: StepWork) -> int:
        """Return the duration of one step; 0 without tokens."""

    def decode_run(self, decodes: int, context: int, steps: int) -> DecodeRun:
        """Return a prefix of ``steps`` steps with linear durations, at least one step.

        Args:
            decodes: requests that get one token in each step.
            context: positions written before the first step, over all requests.
            steps: at least 1.
        """


class _LinearClock:
    def __init__(self, latency: LinearLatency) -> None:
        self._fixed = attoseconds(latency.fixed_s)
        self._batch = cache(lambda decodes: attoseconds(latency.batch_s(decodes)))
        self._prefill = attoseconds(latency.per_prefill_token_s)
        self._decode = attoseconds(latency.per_decode_token_s)
        self._kv = attoseconds(latency.per_kv_token_s)
        self._pair = attoseconds(latency.per_pair_s)

    def step(self, work: StepWork) -> int:
        prefill, decodes, read, pairs = work
        if not prefill and not decodes:
            return 0
        linear = self._fixed + self._prefill * prefill + self._decode * decodes
        return linear + self._batch(decodes) + self._kv * read + self._pair * pairs

    def decode_run(self, decodes: int, context: int, steps: int) -> DecodeRun:
        per_slot = self._kv + self._pair
        first = self._fixed + self._decode * decodes + self._batch(decodes)
        first += per_slot * (context + decodes)
        return DecodeRun(steps, first, per_slot * decodes)


class _RooflineClock:
    def __init__(self, latency: Roofline) -> None:
        share = latency.efficiencies
        weights, cache = latency.bandwidth * share.weights, latency.bandwidth * share.cache
        self._fixed = attoseconds(latency.fixed_s)
        self._weights = latency.weight_bytes / weights
        self._experts = latency.expert_bytes / weights
        self._left_out = 1 - latency.expert_share
        self._dense = attoseconds(self._weights)
        self._kv = attoseconds(latency.kv_token_bytes / cache)
        self._token = attoseconds(latency.token_flops / (latency.flops * share.products))
        self._pair = attoseconds(latency.pair_flops / (latency.flops * share.attention))
        self._max = latency.overlap == "max"

    def step(self, work: StepWork) -> int:
        tokens = work.prefill_tokens + work.decode_tokens
        if not tokens:
            return 0
        memory = self._read_weights(tokens) + self._kv * (work.kv_read_tokens + tokens)
        compute = self._token * tokens + self._pair * work.attention_pairs
        if not self._max:
            return self._fixed + memory + compute
        return self._fixed + (memory if memory > compute else compute)

    def decode_run(self, decodes: int, context: int, steps: int) -> DecodeRun:
        read = context + decodes
        memory = self._read_weights(decodes) + self._kv * (read + decodes)
        compute = self._token * decodes + self._pair * read
        faster, slower = self._kv * decodes, self._pair * decodes
        if not self._max:
            return DecodeRun(steps, self._fixed + memory + compute, faster + slower)
        if memory >= compute:
            line, slope, other, its = memory, faster, compute, slower
        else:
            line, slope, other, its = compute, slower, memory, faster
        last = steps - 1
        if line + last * slope < other + last * its:
            # The other term becomes larger after this many steps.
            steps = (line - other) // (its - slope) + 1
        return DecodeRun(steps, self._fixed + line, slope)

    def _read_weights(self, tokens: int) -> int:
        if not self._experts:
            return self._dense
        return attoseconds(self._weights + self._experts * (1 - self._left_out**tokens))


def step_clock(latency: Latency) -> StepClock:
    """Return the clock of a latency model."""
    if isinstance(latency, Roofline):
        return _RooflineClock(latency)
    return _LinearClock(latency)
