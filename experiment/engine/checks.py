"""Validate requests before anything is queued or allocated."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.engine.sampling import SamplingParams
from kvsim.core.request import final_tokens


class InvalidRequestError(ValueError):
    """The request is invalid for this engine: nothing was queued or allocated."""


def check_request(
    request: int, prompt: Sequence[int], max_new_tokens: int, sampling: SamplingParams,
    vocab_size: int | None, max_length: int | None,
) -> None:  # fmt: skip
    """Validate a request.

    Args:
        vocab_size: token ids are smaller; None: not checked.
        max_length: maximum slots of a request at its end; None: not checked.

    Raises:
        InvalidRequestError: invalid; the message says why.
    """

    def refuse(why: str) -> None:
        raise InvalidRequestError(f"request {request}: {why}")

    if not prompt or max_new_tokens < 1:
        refuse("it needs a prompt and at least one new token")
    needed = final_tokens(len(prompt), max_new_tokens)
    if max_length is not None and needed > max_length:
        refuse(f"it needs {needed} slots, more than the maximum length {max_length}")
    above = float("inf") if vocab_size is None else vocab_size
    for token in (*prompt, *sampling.stop_token_ids):
        # A float would be truncated to an integer later.
        if isinstance(token, bool | float) or not 0 <= token < above:
            refuse(f"no such token: {token}")
    if sampling.min_new_tokens and len(sampling.stop_token_ids) >= above:
        refuse("its stop tokens leave no token to generate")
