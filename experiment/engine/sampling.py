"""From logits to tokens, a whole step at once: greedy, temperature, top-k, top-p, stop tokens.

    logits [requests, vocabulary]
      │  stop tokens that come too early ─► -infinity
      ├─ argmax, all rows ──────────────────────────────────────────────┐
      └─ rows with a temperature:  ÷ temperature ─► top-k ─► top-p      ├─► one copy to the host
           weights ─► cumulative sums;  u · total ─► token of that sum ─┘
                                        u of the request's own CPU generator

Everything but u is computed where the logits are. Weights and their sums are float64: a parallel
sum in float32 depends on the shape of the batch and need not ascend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiment.engine.step_inputs import to_device


class InvalidLogitsError(Exception):
    """No token can be chosen: weights are broken, or a slot was read that nobody wrote.

    The step is lost, the engine is not: abort the requests, and every block is free again.
    """


def checked(logits: torch.Tensor) -> torch.Tensor:
    """Return logits, [rows, vocabulary], of which every row has a largest number.

    Raises:
        InvalidLogitsError: NaN or infinity among them, or a row of nothing but -infinity.
    """
    # The largest of a row is NaN where one of them is.
    if len(logits) and not torch.isfinite(logits.amax(-1)).all():
        raise InvalidLogitsError
    return logits


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request samples. Names and meanings are vLLM's and Transformers'.

    Attributes:
        temperature: 0 is greedy.
        top_k: only the so many likeliest tokens; 0 is all.
        top_p: only the likeliest tokens that together have this probability.
        seed: of this request's own generator; parallel samples count on from it.
        stop_token_ids: generating one of these ends the request; it stays in the output.
        min_new_tokens: until so many are generated, no stop token is.

    Raises:
        ValueError: a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature {self.temperature} is not a number from 0")
        if self.top_k < 0 or not 0 < self.top_p <= 1 or self.min_new_tokens < 0:
            raise ValueError(f"out of range: {self}")


GREEDY = SamplingParams()
# In place of a token where none can be chosen.
_NONE = -1


class Sampler:
    """How one request samples, and its random numbers, whatever else is in the batch.

    Args:
        index: which of the parallel samples of one prompt this is, from 0.
    """

    def __init__(self, params: SamplingParams, index: int = 0) -> None:
        self.params = params
        self._generator: torch.Generator | None = None
        if params.temperature > 0:
            # On the CPU whatever the device: the same seed gives the same numbers everywhere.
            self._generator = torch.Generator().manual_seed(params.seed + index)

    def uniform(self) -> float:
        """The next random number in (0, 1]."""
        return 1 - float(torch.rand((), dtype=torch.float64, generator=self._generator))

    def stops(self, token: int) -> bool:
        """Whether ``token`` ends the request."""
        return token in self.params.stop_token_ids


def sample_all(
    logits: torch.Tensor, samplers: Sequence[Sampler], generated: Sequence[int]
) -> list[int]:
    """Choose one token per row of [requests, vocabulary]; the host waits for the device once.

    Args:
        logits: of the last position of each request.
        samplers: one per row.
        generated: tokens that each request has generated before this one.

    Raises:
        InvalidLogitsError: NaN or infinity in a row, or no token is left to choose.
    """
    logits = _without_stops(logits, samplers, generated)
    tokens = _likeliest(logits)
    largest = logits.gather(-1, tokens[:, None])  # NaN where there is one
    drawn = [row for row, sampler in enumerate(samplers) if sampler.params.temperature > 0]
    if drawn:
        rows = to_device(torch.tensor(drawn), logits.device)
        # Relative to the largest, so that no temperature, however low, ends in infinity.
        relative = logits[rows].float() - largest[rows].float()
        tokens[rows] = _draw(relative, [samplers[row] for row in drawn])
    chosen: list[int] = tokens.masked_fill(~largest[:, 0].isfinite(), _NONE).tolist()
    if _NONE in chosen:
        raise InvalidLogitsError
    return chosen


def _without_stops(
    logits: torch.Tensor, samplers: Sequence[Sampler], generated: Sequence[int]
) -> torch.Tensor:
    """-infinity in place of stop tokens of requests that may not end yet."""
    places = [
        (row, token)
        for row, (sampler, count) in enumerate(zip(samplers, generated, strict=True))
        if count < sampler.params.min_new_tokens
        for token in sampler.params.stop_token_ids
    ]
    if not places:
        return logits
    rows, tokens = to_device(torch.tensor(places), logits.device).unbind(1)
    logits = logits.clone()
    logits[rows, tokens] -= math.inf  # what is no number remains none
    return logits


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Of each row the first of its largest numbers, [rows]."""
    # Torch looks at one number after another here; NumPy at as many as a register holds.
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _draw(relative: torch.Tensor, samplers: Sequence[Sampler]) -> torch.Tensor:
    """A random token of each row, [rows].

    Args:
        relative: logits less the largest of their row, [rows, vocabulary], float32.
        samplers: one per row, each with a temperature.
    """
    params = [sampler.params for sampler in samplers]
    lowest, highest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    numbers = [
        (min(max(one.temperature, lowest), highest), one.top_k, one.top_p, sampler.uniform())
        for one, sampler in zip(params, samplers, strict=True)
    ]
    columns = to_device(torch.tensor(numbers, dtype=torch.float64), relative.device)
    temperature, top_k, top_p, uniform = columns[..., None].unbind(1)
    scores = relative / temperature.float()
    if most := max(min(one.top_k, scores.shape[1]) for one in params):
        _keep_likeliest(scores, top_k.long(), most)
    if any(one.top_p < 1 for one in params):
        _keep_nucleus(scores, top_p)
    sums = scores.double().exp_().cumsum_(-1)
    # The first sum that reaches u · total; what has no weight adds nothing and is never first.
    return torch.searchsorted(sums, uniform * sums[:, -1:])[:, 0]


def _keep_likeliest(scores: torch.Tensor, top_k: torch.Tensor, most: int) -> None:
    """Set all but the ``top_k`` [rows, 1] largest of each row to -infinity; 0 keeps all.

    As Transformers' TopKLogitsWarper; ``most`` is the largest of ``top_k``, at most the columns.
    """
    least = scores.topk(most).values.gather(-1, top_k.clamp(1, most) - 1)
    scores.masked_fill_((scores < least) & (top_k > 0), -math.inf)


def _keep_nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> None:
    """Set all but the smallest set that has the probability ``top_p`` [rows, 1] to -infinity.

    As Transformers' TopPLogitsWarper; of equal scores the first ones stay.
    """
    if scores.device.type == "cpu":  # NumPy again: 30 times as fast with AVX-512
        ordered = torch.from_numpy(np.sort(scores.numpy(), -1))
    else:
        ordered = scores.sort(-1).values
    sums = ordered.double().exp_().cumsum_(-1)
    first = torch.searchsorted(sums, (1 - top_p) * sums[:, -1:], right=True)
    first.clamp_(max=scores.shape[1] - 1)
    least = ordered.gather(-1, first)
    equal = scores == least
    room = torch.searchsorted(ordered, least, right=True) - first
    outside = (scores < least) | (equal & (equal.cumsum(-1) > room))
    scores.masked_fill_(outside, -math.inf)
