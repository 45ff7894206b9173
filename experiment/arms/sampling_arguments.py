"""Sampling arguments of ``generate``, with the filters and order of our own sampler."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from experiment.events.sampling import SamplingConfig


def sampling_arguments(
    sampling: SamplingConfig, stops: Collection[int], prompt_tokens: int
) -> dict[str, Any]:
    """Arguments of ``generate``.

    Unused filters are set explicitly: a model's ``generation_config.json`` may set its own, and
    Transformers' default keeps the 50 likeliest tokens.

    Args:
        stops: tokens that are excluded until ``min_new_tokens`` are generated.
        prompt_tokens: of the padded batch.
    """
    arguments: dict[str, Any] = {"do_sample": not sampling.greedy}
    if not sampling.greedy:
        arguments |= {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
        }
    if stops and sampling.min_new_tokens:
        until = prompt_tokens + sampling.min_new_tokens
        arguments["logits_processor"] = LogitsProcessorList([_NoStopBefore(until, stops)])
    return arguments


class _NoStopBefore(LogitsProcessor):  # type: ignore[misc]
    """Exclude stop tokens until a row has ``length`` tokens."""

    def __init__(self, length: int, stops: Collection[int]) -> None:
        self.length = length
        self.stops = sorted(stops)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows, vocabulary], modified while stop tokens are excluded."""
        if input_ids.shape[1] >= self.length:
            return scores
        scores = scores.clone()
        scores[:, self.stops] = float("-inf")
        return scores
