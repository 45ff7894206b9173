"""Validate requests before anything is queued or allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.engine.sampling import SamplingParams
from kvsim.core.request import final_tokens


class InvalidRequestError(ValueError):
    """The request is invalid for this engine: nothing was queued or allocated."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a model for its requests; None: checked by the caller.

    Attributes:
        vocab_size: token ids are smaller.
        max_length: maximum slots of a request at its end.
    """

    vocab_size: int | None = None
    max_length: int | None = None

    def check(
        self, request: int, prompt: Sequence[int], max_new_tokens: int, sampling: SamplingParams
    ) -> None:
        """Validate a request.

        Raises:
            InvalidRequestError: invalid; the message says why.
        """

        def refuse(why: str) -> None:
            raise InvalidRequestError(f"request {request}: {why}")

        if not prompt or max_new_tokens < 1:
            refuse("it needs a prompt and at least one new token")
        needed = final_tokens(len(prompt), max_new_tokens)
        if self.max_length is not None and needed > self.max_length:
            refuse(f"it needs {needed} slots, more than the maximum length {self.max_length}")
        for token in (*prompt, *sampling.stop_token_ids):
            # A float would be truncated to an integer later.
            if isinstance(token, bool | float) or not self._is_token(token):
                refuse(f"no such token: {token}")
        stops = len(sampling.stop_token_ids)
        if self.vocab_size is not None and sampling.min_new_tokens and stops >= self.vocab_size:
            refuse("its stop tokens leave no token to generate")

    def _is_token(self, token: int) -> bool:
        return token >= 0 and (self.vocab_size is None or token < self.vocab_size)
