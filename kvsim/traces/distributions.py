"""Random arrival times and lengths, parametrised by their means.

Gamma arrivals with a coefficient of variation (CV) above 1 are bursty; 1 is a Poisson process, 0 a
constant rate. (``burstiness`` of vLLM's benchmark is 1 / CV².)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvsim.traces.types import LONGEST_NS, NANOSECONDS, TraceError

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArrivalProcess:
    """Arrival times.

    Attributes:
        rate: mean requests per second; None: all at once.
        cv: standard deviation / mean of inter-arrival times: 1 is a Poisson process, 0 constant.
    """

    rate: float | None
    cv: float = 1.0

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"a rate of {self.rate} requests a second")
        if not 0 <= self.cv < math.inf:
            raise ValueError(f"a coefficient of variation of {self.cv}")

    def sample(self, count: int, random: np.random.Generator) -> Ints:
        """Sample ``count`` times in nanoseconds; the first is 0.

        Raises:
            TraceError: ``clock_too_long``.
        """
        if self.rate is None or not count:
            return np.zeros(count, np.int64)
        mean = NANOSECONDS / self.rate
        if self.cv == 0:
            gaps = np.full(count, mean)
        else:
            shape = 1 / self.cv**2
            gaps = random.gamma(shape, mean / shape, count)
        gaps[0] = 0
        times = np.cumsum(gaps)
        if times[-1] > LONGEST_NS:
            raise TraceError("clock_too_long", request=int(np.argmax(times > LONGEST_NS)))
        return _whole(times)


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Lengths of prompts or outputs.

    Attributes:
        kind: ``fixed``, ``lognormal`` (``spread`` is sigma, the deviation of the logarithm) or
            ``gamma`` (``spread`` is the standard deviation in tokens).
        mean: tokens, before rounding and limits.
    """

    kind: Literal["fixed", "lognormal", "gamma"]
    mean: float
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.mean < math.inf:
            raise ValueError(f"a mean length of {self.mean} tokens")
        if not 0 <= self.spread < math.inf or (self.kind == "gamma" and not self.spread):
            raise ValueError(f"a spread of {self.spread} for {self.kind} lengths")

    def sample(self, count: int, random: np.random.Generator) -> Ints:
        """Sample ``count`` lengths, rounded to whole tokens; may be 0."""
        if self.kind == "fixed":
            values: NDArray[Any] = np.full(count, self.mean)
        elif self.kind == "lognormal":
            values = random.lognormal(math.log(self.mean) - self.spread**2 / 2, self.spread, count)
        else:
            shape = (self.mean / self.spread) ** 2
            values = random.gamma(shape, self.mean / shape, count)
        return _whole(values)


def _whole(values: NDArray[Any]) -> Ints:
    rounded: Ints = np.rint(values).astype(np.int64)
    return rounded
