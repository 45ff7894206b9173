"""Beam searches of an engine: sequences of the beams, forks, and reported results.

    request 5    live beams     5   1000000   1000003          sequences of the scheduler
                 scores      -4.1      -4.3      -5.0
                 hypotheses  [eos, -0.6]                       finished; they hold no blocks

A continued beam keeps its id and blocks; a fork gets a new id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from experiment.engine.beam_search import BeamParams, BeamSearch, LiveSearch
from experiment.engine.generation import Generation
from experiment.events.sampling import FIRST_BEAM_ID
from kvsim.core.step import Finish, FinishReason


@dataclass(slots=True)
class BeamMoves:
    """Changes to the beams of all searches in one step; see :class:`StepOutcome`."""

    forked: dict[int, int] = field(default_factory=dict)
    pruned: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def move(
        self,
        live: LiveSearch,
        logits: torch.Tensor,
        generations: dict[int, Generation],
        new_ids: Iterator[int],
    ) -> None:
        """Select the next beams of ``live`` and append their next tokens.

        The best continuation of a beam continues in place; any other is a fork of it.

        Args:
            logits: [live beams, vocabulary], in the order of ``live.scores``.
            generations: of all sequences; forks are added.
            new_ids: ids of forks.
        """
        ids = list(live.scores)
        tokens = [generations[beam].new_tokens for beam in ids]
        log_probs = logits.float().log_softmax(-1)
        chosen, stopped = live.search.step(log_probs, list(live.scores.values()), tokens)
        scores: dict[int, float] = {}
        first: dict[int, int] = {}
        for place, token, score in chosen:
            beam = ids[place]
            if beam in first:
                parent, beam = beam, next(new_ids)
                self.forked[beam] = parent
                generations[beam] = generations[parent].fork(token)
            else:
                first[beam] = token
            scores[beam] = score
        for place, beam in enumerate(ids):
            if beam not in first and len(tokens[place]) + 1 < live.search.max_new_tokens:
                (self.stopped if place in stopped else self.pruned).append(beam)
        # After forking, since forks copy the tokens.
        for beam, token in first.items():
            generations[beam].tokens.append(token)
        live.scores = scores


class Beams:
    """All searches of one engine, by request.

    Args:
        generations: of all sequences of the engine; beams are added and removed here.
    """

    def __init__(self, generations: dict[int, Generation]) -> None:
        self.searches: dict[int, LiveSearch] = {}
        self._generations = generations
        self._ids = count(FIRST_BEAM_ID)

    def begin(self, request: int, generation: Generation, params: BeamParams) -> None:
        """Make ``generation`` the first beam of a search."""
        search = BeamSearch(params, generation.max_new_tokens)
        generation.search = self.searches[request] = LiveSearch(request, search, {request: 0.0})

    def move(self, requests: Sequence[int], logits: torch.Tensor) -> BeamMoves:
        """Select the next beams among ``requests`` from logits [requests, vocabulary]."""
        rows: dict[int, dict[int, int]] = {}
        for row, request in enumerate(requests):
            live = self._generations[request].search
            if live is not None:
                rows.setdefault(live.request, {})[request] = row
        moves = BeamMoves()
        for request, beams in rows.items():
            live = self.searches[request]
            places = [beams[beam] for beam in live.scores]
            moves.move(live, logits[places], self._generations, self._ids)
        return moves

    def report(self, finished: Sequence[Finish]) -> Iterator[Finish]:
        """Replace finished beams by their request, once per search, when it is done."""
        ended: set[int] = set()
        for finish in finished:
            generation = self._generations.get(finish.request)
            live = generation.search if generation else None
            if live is None:
                yield finish
                continue
            if live.search.done and live.request not in ended:
                ended.add(live.request)
                stopped = live.hypotheses[0].stopped
                yield Finish(live.request, FinishReason.STOP if stopped else FinishReason.LENGTH)
            if finish.request != live.request:
                del self._generations[finish.request]

    def drop(self, live: LiveSearch) -> None:
        """Remove the beams of an aborted search; the request itself is kept."""
        for request, generation in tuple(self._generations.items()):
            if generation.search is live and request != live.request:
                del self._generations[request]
