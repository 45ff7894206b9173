"""From logits to a token, per request: greedy, temperature, top-k, top-p, seeds, stop tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiment.engine.checks import InvalidLogitsError


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


class Sampler:
    """Samples for one request; its random numbers are its own, whatever else is in the batch.

    Args:
        index: which of the parallel samples of one prompt this is, from 0.
    """

    def __init__(self, params: SamplingParams, index: int = 0) -> None:
        self.params = params
        self._generator: torch.Generator | None = None
        if params.temperature > 0:
            # On the CPU whatever the device: the same seed gives the same numbers everywhere.
            self._generator = torch.Generator().manual_seed(params.seed + index)

    def __call__(self, logits: torch.Tensor, generated: int) -> int:
        """Choose a token.

        Args:
            logits: [vocabulary] of the request's last position.
            generated: tokens that it has generated before this one.

        Raises:
            InvalidLogitsError: no token is left to choose.
        """
        params = self.params
        if params.stop_token_ids and generated < params.min_new_tokens:
            logits = logits.clone()
            logits[list(params.stop_token_ids)] = float("-inf")
            if not torch.isfinite(logits.max()):
                raise InvalidLogitsError
        if self._generator is None:
            return int(logits.argmax())
        # Relative to the largest, so that no temperature, however low, ends in infinity.
        scores = logits.double().cpu()
        scores = ((scores - scores.max()) / params.temperature).float()
        weights = _nucleus(_top_k(scores, params), params)
        return int(torch.multinomial(weights, 1, generator=self._generator))

    def stops(self, token: int) -> bool:
        """Whether ``token`` ends the request."""
        return token in self.params.stop_token_ids


def sample_all(
    logits: torch.Tensor, samplers: Sequence[Sampler], generated: Sequence[int]
) -> list[int]:
    """Choose one token per row of [requests, vocabulary]; greedy rows in one go."""
    if all(
        plain_greedy(sampler, count) for sampler, count in zip(samplers, generated, strict=True)
    ):
        return _likeliest(logits)
    rows = zip(logits, samplers, generated, strict=True)
    return [sampler(row, count) for row, sampler, count in rows]


def _likeliest(logits: torch.Tensor) -> list[int]:
    """Of each row the first of its largest numbers."""
    # Torch looks at one number after another here; NumPy at as many as a register holds.
    by_numpy = logits.device.type == "cpu" and logits.dtype == torch.float32
    tokens: list[int] = (logits.numpy() if by_numpy else logits).argmax(-1).tolist()
    return tokens


def plain_greedy(sampler: Sampler, generated: int) -> bool:
    """Whether the likeliest token is taken without further conditions."""
    params = sampler.params
    free = not params.stop_token_ids or generated >= params.min_new_tokens
    return params.temperature == 0 and free


def _top_k(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    if not 0 < params.top_k < logits.numel():
        return logits
    least = logits.topk(params.top_k).values[-1]
    return logits.masked_fill(logits < least, float("-inf"))


def _nucleus(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities; those outside the smallest set that reaches ``top_p`` are 0."""
    weights = logits.softmax(-1)
    if params.top_p >= 1:
        return weights
    ordered, index = weights.sort(descending=True)
    before = ordered.cumsum(-1) - ordered  # probability of everything likelier
    kept = torch.where(before < params.top_p, ordered, torch.zeros_like(ordered))
    return torch.zeros_like(weights).scatter(-1, index, kept)
