"""Which prompts an arm computes before its clock starts: the same in each that batches.

    the workload's, in its order     40   126   90   3
    a maximum length of 128                 ×              three new tokens would not fit
    in one step of 130 tokens        40         90         the next begins a second one

What is computed for the first time is slower, and no arm should meet it on its clock. Transformers
with a contiguous cache takes its first padded batch, or its longest prompt, and as many new tokens.
"""

from __future__ import annotations

from experiment.events import WorkloadReady

# As many steps: one over prompts, one in which some decode and some are not done with theirs, and
# one that decodes alone, which takes other ways through an engine.
NEW_TOKENS = 3


def are_due(repeats: int) -> bool:
    """Whether an arm computes any; not where ``repeats`` follow a first one, which warms up."""
    return repeats == 0


def first_prompts(workload: WorkloadReady, most_tokens: int) -> list[int]:
    """Their lengths, in tokens: as many as fit into a step, and the one that fills it.

    Args:
        most_tokens: of a step.
    """
    lengths: list[int] = []
    for first, *_ in workload.samples():
        if sum(lengths) >= most_tokens:
            break
        if len(first.token_ids) + NEW_TOKENS <= workload.max_length:
            lengths.append(len(first.token_ids))
    return lengths
