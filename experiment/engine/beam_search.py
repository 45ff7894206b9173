"""Beam search: select the continuations to keep and the finished hypotheses.

    live beams         candidates: the best of all continuations     next
    A  -1.2      ─►    A x -1.5,  B y -1.9,  A z -2.0,  B eos -2.3    A+x, B+y continue in place
    B  -1.7                                                          A+z is a fork of A
    C  -3.1                                                          C is pruned; B eos is kept
                                                                     as a hypothesis

Scores, order of hypotheses and stopping rules are those of Transformers' ``generate(num_beams=k,
do_sample=False)``, so that results can be compared one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Parameters of a beam search, with Transformers' names and meanings.

    Attributes:
        num_beams: live beams, at least 2; vLLM's ``beam_width``.
        length_penalty: a hypothesis scores its log-probability / length ** length_penalty; lengths
            count new tokens.
        early_stopping: end with ``num_beams`` hypotheses (True); when the best live beam would not
            beat the worst of them at its length (False), or at the most favourable one ("never").
        stop_token_ids: end a hypothesis; they stay in the output.

    Raises:
        ValueError: a value out of range.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stop_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num_beams < 2:
            raise ValueError(f"a beam search of width {self.num_beams}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f"early_stopping is {self.early_stopping!r}")


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


class Choice(NamedTuple):
    """Outcome of a step: the next live beams, best first, and beams with a new hypothesis."""

    live: list[Continuation]
    stopped: set[int]


@dataclass(slots=True)
class BeamSearch:
    """State of a search: hypotheses so far, best first, and whether it has ended."""

    params: BeamParams
    max_new_tokens: int
    hypotheses: list[Hypothesis] = field(default_factory=list)
    done: bool = False

    def step(self, log_probs: torch.Tensor, scores: list[float], beams: list[list[int]]) -> Choice:
        """Select the next live beams; empty at the end of the search.

        Args:
            log_probs: [live beams, vocabulary], of the next token.
            scores: summed log-probability of each live beam.
            beams: new tokens of each live beam; all have the same number.
        """
        params, length = self.params, len(beams[0]) + 1
        live: list[Continuation] = []
        finished: list[tuple[Hypothesis, int]] = []
        for rank, candidate in enumerate(self._candidates(log_probs, scores)):
            beam, token, score = candidate
            stops = token in params.stop_token_ids
            if not stops and length < self.max_new_tokens:
                live.append(candidate)
            elif rank < params.num_beams:
                penalised = score / length**params.length_penalty
                finished.append((Hypothesis((*beams[beam], token), penalised, stops), beam))
        kept = self._keep(finished)
        live = live[: params.num_beams]
        self.done = not live or self._ends(live[0].score, length)
        return Choice([] if self.done else live, kept)

    def _keep(self, finished: list[tuple[Hypothesis, int]]) -> set[int]:
        """Merge new hypotheses with earlier ones; return the beams of kept stopped ones."""
        merged = [*((hypothesis, None) for hypothesis in self.hypotheses), *finished]
        best = sorted(merged, key=lambda pair: -pair[0].score)[: self.params.num_beams]
        self.hypotheses = [hypothesis for hypothesis, _ in best]
        return {beam for hypothesis, beam in best if beam is not None and hypothesis.stopped}

    @property
    def _full(self) -> bool:
        return len(self.hypotheses) == self.params.num_beams

    def _candidates(self, log_probs: torch.Tensor, scores: list[float]) -> list[Continuation]:
        """The best continuations: enough that ``num_beams`` remain if the others stop."""
        vocabulary = log_probs.shape[1]
        totals = log_probs + torch.tensor(scores, device=log_probs.device)[:, None]
        keep = max(2, 1 + len(self.params.stop_token_ids)) * self.params.num_beams
        values, places = totals.flatten().topk(min(keep, totals.numel()))
        pairs = zip(values.tolist(), places.tolist(), strict=True)
        return [
            Continuation(place // vocabulary, place % vocabulary, value) for value, place in pairs
        ]

    def _ends(self, best_live: float, length: int) -> bool:
        """Whether no live beam can improve the result, by Transformers' heuristic."""
        params = self.params
        if not self._full:
            return False
        if params.early_stopping is True:
            return True
        if params.early_stopping == "never" and params.length_penalty > 0:
            length = self.max_new_tokens
        best_possible: float = best_live / length**params.length_penalty
        return best_possible <= self.hypotheses[-1].score


@dataclass(slots=True, eq=False)
class LiveSearch:
    """A beam search and its live beams: sequence id -> summed log-probability."""

    request: int
    search: BeamSearch
    scores: dict[int, float]

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Finished sequences, best first; empty until the search has ended."""
        return tuple(self.search.hypotheses) if self.search.done else ()
