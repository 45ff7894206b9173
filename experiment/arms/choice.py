"""What arms share that are not our engine: first prompts off the clock, how tokens are chosen.

The filters are those of our own sampler, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from experiment.arms.base import ArmRun
from experiment.events import ProfileRun
from experiment.events.sampling import SamplingConfig


@contextmanager
def first_run(run: ArmRun, prompts: Sequence[int]) -> Iterator[None]:
    """Stop the clock while first prompts are computed, and tell what was and how long it took.

    Args:
        prompts: their lengths, in tokens.
    """
    began = time.perf_counter()
    with run.paused():
        yield
        run.synchronize()
    seconds = time.perf_counter() - began
    done = {"prompt_tokens": sum(prompts), "requests": len(prompts), "seconds": seconds}
    run.emit(ProfileRun(arm=run.task.arm, kept=False, **done))


def choice(sampling: SamplingConfig, stops: Collection[int], prompt_tokens: int) -> dict[str, Any]:
    """Arguments of ``generate``.

    A filter that is not asked for is named all the same: a model's ``generation_config.json`` may
    bring its own, and Transformers keeps the 50 likeliest tokens unless it is told not to.

    Args:
        stops: tokens that may not come before ``min_new_tokens`` are there.
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
    """Makes stop tokens impossible until a row has ``length`` tokens."""

    def __init__(self, length: int, stops: Collection[int]) -> None:
        self.length = length
        self.stops = sorted(stops)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of [rows, vocabulary], changed where it is too early to stop."""
        if input_ids.shape[1] >= self.length:
            return scores
        scores = scores.clone()
        scores[:, self.stops] = float("-inf")
        return scores
