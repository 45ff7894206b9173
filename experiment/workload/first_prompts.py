"""Prompts of the warm-up before an arm's clock starts, equal in all batching arms.

    the workload's, in its order     40   126   90   3
    a maximum length of 128                 ×              three new tokens would not fit
    in one step of 130 tokens        40         90         the next one needs a second step

Code paths are slower when they run for the first time. Transformers with a contiguous cache uses
its first padded batch, or its longest prompt, and as many new tokens.
"""

from __future__ import annotations

from experiment.events import WorkloadReady

# As many steps: prefill only, mixed prefill and decode, and decode only, which use different code
# paths of an engine.
NEW_TOKENS = 3


def needs_warm_up(repeats: int) -> bool:
    """Whether an arm warms up; not before ``repeats``, whose first one is a warm-up."""
    return repeats == 0


def first_prompts(workload: WorkloadReady, most_tokens: int) -> list[int]:
    """Prompt lengths in tokens: as many as fit into a step, and the one that fills it.

    Args:
        most_tokens: token budget of a step.
    """
    lengths: list[int] = []
    for first, *_ in workload.samples():
        if sum(lengths) >= most_tokens:
            break
        if len(first.token_ids) + NEW_TOKENS <= workload.max_length:
            lengths.append(len(first.token_ids))
    return lengths
