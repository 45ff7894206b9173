"""Sample tokens for a whole step: greedy, temperature, top-k, top-p, stop tokens.

    logits [requests, vocabulary]
      │  stop tokens before min_new_tokens ─► -infinity
      ├─ argmax, all rows ──────────────────────────────────────────────┐
      └─ rows with a temperature:  ÷ temperature ─► top-k ─► top-p      ├─► one copy to the host
           weights ─► cumulative sums;  u · total ─► token of that sum ─┘
                                        u of the request's own CPU generator

Everything except u is computed on the device of the logits. Weights and sums are float64: a
parallel sum in float32 depends on the shape of the batch and may not ascend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiment.engine.step_inputs import to_device


class InvalidLogitsError(Exception):
    """No token can be chosen: invalid weights, or an unwritten slot was read.

    The step is lost, but the engine remains usable: abort the requests to free their blocks.
    """


def check_logits(logits: torch.Tensor) -> torch.Tensor:
    """Return logits [rows, vocabulary] after checking that each row has a finite maximum.

    Raises:
        InvalidLogitsError: NaN or positive infinity, or a row of -infinity only.
    """
    # The maximum of a row with NaN is NaN.
    if len(logits) and not torch.isfinite(logits.amax(-1)).all():
        raise InvalidLogitsError
    return logits


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request; names and meanings are vLLM's and Transformers'.

    Attributes:
        temperature: 0 is greedy.
        top_k: number of most likely tokens to sample from; 0: all.
        top_p: cumulative probability of the most likely tokens to sample from.
        seed: of the request's own generator; parallel samples add their index.
        stop_token_ids: generating one of these ends the request; it stays in the output.
        min_new_tokens: stop tokens are excluded until this many are generated.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    min_new_tokens: int = 0


GREEDY = SamplingParams()
# Marks a row without a valid token.
_NONE = -1


class Sampler:
    """Sampling parameters and random numbers of one request, independent of the batch.

    Args:
        index: index among the parallel samples of a prompt, from 0.
    """

    def __init__(self, params: SamplingParams, index: int = 0) -> None:
        self.params = params
        self._generator: torch.Generator | None = None
        if params.temperature > 0:
            # On the CPU for any device: the same seed gives the same numbers everywhere.
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
    """Sample one token per row of [requests, vocabulary]; synchronises with the device once.

    Args:
        logits: of the last position of each request.
        samplers: one per row.
        generated: number of tokens that each request has generated so far.

    Raises:
        InvalidLogitsError: NaN or positive infinity in a row, or no token is left.
    """
    logits = _without_stops(logits, samplers, generated)
    tokens = _likeliest(logits)
    largest = logits.gather(-1, tokens[:, None])  # propagates NaN
    drawn = [row for row, sampler in enumerate(samplers) if sampler.params.temperature > 0]
    if drawn:
        rows = to_device(torch.tensor(drawn), logits.device)
        # Relative to the maximum, so that low temperatures do not overflow.
        relative = logits[rows].float() - largest[rows].float()
        tokens[rows] = _draw(relative, [samplers[row] for row in drawn])
    chosen: list[int] = tokens.masked_fill(~largest[:, 0].isfinite(), _NONE).tolist()
    if _NONE in chosen:
        raise InvalidLogitsError
    return chosen


def _without_stops(
    logits: torch.Tensor, samplers: Sequence[Sampler], generated: Sequence[int]
) -> torch.Tensor:
    """Set stop tokens of requests that may not end yet to -infinity."""
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
    logits[rows, tokens] -= math.inf  # keeps NaN
    return logits


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Index of the first maximum of each row, [rows]."""
    # NumPy's argmax is vectorised, torch's is not.
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _draw(relative: torch.Tensor, samplers: Sequence[Sampler]) -> torch.Tensor:
    """Sample a token of each row, [rows].

    Args:
        relative: logits minus the maximum of their row, [rows, vocabulary], float32.
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
    # The first sum that reaches u · total; tokens without weight are never selected.
    return torch.searchsorted(sums, uniform * sums[:, -1:])[:, 0]


def _keep_likeliest(scores: torch.Tensor, top_k: torch.Tensor, most: int) -> None:
    """Set all but the ``top_k`` [rows, 1] largest of each row to -infinity; 0 keeps all.

    As Transformers' TopKLogitsWarper; ``most`` is the largest of ``top_k``, at most the columns.
    """
    least = scores.topk(most).values.gather(-1, top_k.clamp(1, most) - 1)
    scores.masked_fill_((scores < least) & (top_k > 0), -math.inf)


def _keep_nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> None:
    """Set all but the smallest set with the probability ``top_p`` [rows, 1] to -infinity.

    As Transformers' TopPLogitsWarper; of equal scores the first ones are kept.
    """
    if scores.device.type == "cpu":  # NumPy is 30 times as fast with AVX-512
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
