"""Beam searches of an engine: sequences of the beams, forks, and reported results.

    request 5    live beams     5   1000000   1000003          sequences of the scheduler
                 scores      -4.1      -4.3      -5.0
                 hypotheses  [eos, -0.6]                       finished; they hold no blocks

A continued beam keeps its id and blocks; a fork gets a new id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from experiment.engine.beam_search import BeamSearch
from experiment.engine.generation import Generation, StepOutcome
from experiment.events.sampling import FIRST_BEAM_ID
from kvsim.core.step import Finish, FinishReason


class Beams:
    """All searches of one engine, by request.

    Args:
        generations: of all sequences of the engine; beams are added and removed here.
    """

    def __init__(self, generations: dict[int, Generation]) -> None:
        self.searches: dict[int, BeamSearch] = {}
        self._generations = generations
        self._ids = count(FIRST_BEAM_ID)

    def move(self, outcome: StepOutcome, requests: Sequence[int], logits: torch.Tensor) -> None:
        """Select the next beams among ``requests`` from logits [requests, vocabulary].

        Their forks, and the beams that end, are added to the outcome.
        """
        rows = {request: row for row, request in enumerate(requests)}
        found = (self._generations[request].search for request in requests)
        for search in dict.fromkeys(filter(None, found)):
            self._move(outcome, search, logits[[rows[beam] for beam in search.scores]])

    def _move(self, outcome: StepOutcome, search: BeamSearch, logits: torch.Tensor) -> None:
        """Select the next beams of a search and append their next tokens.

        The best continuation of a beam continues in place; any other is a fork of it.
        ``logits`` are [live beams, vocabulary], in the order of ``search.scores``.
        """
        generations, ids = self._generations, list(search.scores)
        tokens = [generations[beam].new_tokens for beam in ids]
        chosen, stopped = search.step(logits.float().log_softmax(-1), tokens)
        search.scores = {}
        first: dict[int, int] = {}
        for place, token, score in chosen:
            beam = ids[place]
            if beam in first:
                parent, beam = beam, next(self._ids)
                outcome.forked[beam] = parent
                generations[beam] = generations[parent].fork(token)
            else:
                first[beam] = token
            search.scores[beam] = score
        for place, beam in enumerate(ids):
            if beam not in first and len(tokens[place]) + 1 < search.max_new_tokens:
                (outcome.stopped if place in stopped else outcome.pruned).append(beam)
        # After forking, since forks copy the tokens.
        for beam, token in first.items():
            generations[beam].tokens.append(token)

    def report(self, finished: Sequence[Finish]) -> Iterator[Finish]:
        """Replace finished beams by their request, once per search, when it is done."""
        ended: set[int] = set()
        for finish in finished:
            generation = self._generations.get(finish.request)
            search = generation.search if generation else None
            if search is None:
                yield finish
                continue
            if search.done and search.request not in ended:
                ended.add(search.request)
                stopped = search.hypotheses[0].stopped
                yield Finish(search.request, FinishReason.STOP if stopped else FinishReason.LENGTH)
            if finish.request != search.request:
                del self._generations[finish.request]

    def drop(self, search: BeamSearch) -> None:
        """Remove the beams of an aborted search; the request itself is kept."""
        for request, generation in tuple(self._generations.items()):
            if generation.search is search and request != search.request:
                del self._generations[request]
