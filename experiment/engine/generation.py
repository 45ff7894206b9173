"""State of a request in the engine, and outcome of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from experiment.engine.beam_search import BeamSearch
from experiment.engine.sampling import Sampler
from kvsim.core.prefix import KeyChain
from kvsim.core.request import Request
from kvsim.core.step import StepPlan


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """Outcome of a step: its plan, and the token of each request that sampled.

    A beam search has no tokens before its end, because any beam may still be pruned.

    Attributes:
        forked: parallel samples and beams that start here, with the id of their parent.
        pruned: beams that end here without a continuation.
        stopped: beams that end here because their only continuations are stop tokens.
    """

    plan: StepPlan
    tokens: dict[int, int] = field(default_factory=dict)
    forked: dict[int, int] = field(default_factory=dict)
    pruned: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Generation:
    """Tokens of a request, and its sampler or the search whose beam it is."""

    tokens: list[int]
    prompt_tokens: int
    max_new_tokens: int
    sampler: Sampler
    chain: KeyChain
    priority: int
    children: tuple[int, ...] = ()
    search: BeamSearch | None = None

    @property
    def new_tokens(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self.prompt_tokens :]

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - self.prompt_tokens

    def fork(self, token: int | None = None, sampler: Sampler | None = None) -> Generation:
        """Copy with the same tokens, optionally one more, that continues independently."""
        return Generation(
            tokens=[*self.tokens] if token is None else [*self.tokens, token],
            prompt_tokens=self.prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            sampler=sampler or self.sampler,
            chain=self.chain.fork(),
            priority=self.priority,
            search=self.search,
        )

    def as_request(self, request: int) -> Request:
        """Request object for the scheduler."""
        return Request(
            request,
            self.prompt_tokens,
            self.max_new_tokens,
            keys=lambda count: self.chain.keys(self.tokens, count),
            priority=self.priority,
            beams=self.search.num_beams if self.search else 1,
        )
