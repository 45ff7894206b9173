"""Beam search: select the continuations to keep and the finished hypotheses.

    live beams         candidates: the best of all continuations     next
    A  -1.2      ─►    A x -1.5,  B y -1.9,  A z -2.0,  B eos -2.3    A+x, B+y continue in place
    B  -1.7                                                          A+z is a fork of A
    C  -3.1                                                          C is pruned; B eos is kept
                                                                     as a hypothesis

Scores, order of hypotheses and stopping rules are those of Transformers' ``generate(num_beams=k,
do_sample=False)``, so that results can be compared one by one. A hypothesis scores its mean
log-probability per new token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence: new tokens, score, and whether a stop token ended it."""

    tokens: tuple[int, ...]
    score: float
    stopped: bool


class Continuation(NamedTuple):
    """A live beam's index, one more token, and the summed log-probability."""

    beam: int
    token: int
    score: float


@dataclass(slots=True, eq=False)
class BeamSearch:
    """State of the search of one request.

    Attributes:
        num_beams: live beams, at least 2; vLLM's ``beam_width``.
        stop_token_ids: end a hypothesis; they stay in the output.
        max_new_tokens: of a hypothesis.
        scores: live beams by sequence id, best first, with their summed log-probability.
        found: hypotheses so far, best first.
        done: whether the search has ended.
    """

    request: int
    num_beams: int
    stop_token_ids: frozenset[int]
    max_new_tokens: int
    scores: dict[int, float]
    found: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Finished sequences, best first; empty until the search has ended."""
        return tuple(self.found) if self.done else ()

    def step(
        self, log_probs: torch.Tensor, beams: list[list[int]]
    ) -> tuple[list[Continuation], set[int]]:
        """Select the next live beams, best first; none at the end of the search.

        Args:
            log_probs: [live beams, vocabulary], of the next token, in the order of ``scores``.
            beams: new tokens of each live beam; all have the same number.

        Returns:
            The continuations, and the indices of beams that have a new hypothesis.
        """
        length = len(beams[0]) + 1
        live: list[Continuation] = []
        finished: list[tuple[Hypothesis, int | None]] = []
        for rank, candidate in enumerate(self._candidates(log_probs)):
            beam, token, score = candidate
            stops = token in self.stop_token_ids
            if not stops and length < self.max_new_tokens:
                live.append(candidate)
            elif rank < self.num_beams:
                finished.append((Hypothesis((*beams[beam], token), score / length, stops), beam))
        merged = [*((hypothesis, None) for hypothesis in self.found), *finished]
        best = sorted(merged, key=lambda pair: -pair[0].score)[: self.num_beams]
        self.found = [hypothesis for hypothesis, _ in best]
        # No live beam can improve the result, by Transformers' heuristic.
        full = len(self.found) == self.num_beams
        self.done = not live or (full and live[0].score / length <= self.found[-1].score)
        stopped = {beam for hypothesis, beam in best if beam is not None and hypothesis.stopped}
        return [] if self.done else live[: self.num_beams], stopped

    def _candidates(self, log_probs: torch.Tensor) -> list[Continuation]:
        """The best continuations: enough that ``num_beams`` remain if the others stop."""
        vocabulary = log_probs.shape[1]
        scores = torch.tensor(list(self.scores.values()), device=log_probs.device)
        totals = log_probs + scores[:, None]
        keep = max(2, 1 + len(self.stop_token_ids)) * self.num_beams
        values, places = totals.flatten().topk(min(keep, totals.numel()))
        pairs = zip(values.tolist(), places.tolist(), strict=True)
        return [
            Continuation(place // vocabulary, place % vocabulary, value) for value, place in pairs
        ]
