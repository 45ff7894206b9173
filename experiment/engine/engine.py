"""The engine loop: schedule, run, sample, complete.

    add(request) ─► scheduler ─► StepPlan ─► KVPool.apply ─► ModelRunner ─► sample ─► complete
                        ▲                                                               │
                        └───────────────────────────────────────────────────────────────┘

:mod:`kvsim` makes all decisions about blocks; the engine applies them to tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from experiment.engine.beam_search import BeamSearch, Hypothesis
from experiment.engine.beams import Beams
from experiment.engine.checks import InvalidRequestError, check_request
from experiment.engine.generation import Generation, StepOutcome
from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.sampling import GREEDY, Sampler, SamplingParams, check_logits, sample_all
from experiment.engine.step_inputs import StepInputs, build_inputs, to_device
from experiment.events.sampling import FIRST_BEAM_ID
from kvsim.core.blocks import BlockPool
from kvsim.core.prefix import KeyChain
from kvsim.core.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.core.step import Finish, StepPlan


class Engine:
    """Generate for many concurrent requests over one paged KV pool.

    Args:
        runner: the model and its pool.
        config: limits and policies of the scheduler.
        eos_token_ids: end a request when generated.
        vocab_size: larger token ids are refused; None: not checked.
        max_length: maximum slots of a request; longer requests are refused. None: not checked.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: SchedulerConfig | None = None,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        max_length: int | None = None,
    ) -> None:
        self.runner = runner
        self.blocks = BlockPool(runner.pool.num_blocks, runner.pool.block_size)
        self.scheduler = Scheduler(self.blocks, config)
        self.eos_token_ids = frozenset(eos_token_ids)
        self._limits = vocab_size, max_length
        self._generations: dict[int, Generation] = {}
        self._beams = Beams(self._generations)
        # Ids of parallel samples that have not started.
        self._reserved_ids: set[int] = set()

    @property
    def pool(self) -> KVPool:
        """The KV pool."""
        return self.runner.pool

    # -- requests --------------------------------------------------------------------------

    def add(
        self,
        request: int,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: SamplingParams = GREEDY,
        *,
        children: Sequence[int] = (),
        priority: int = 0,
    ) -> None:
        """Queue a request.

        Args:
            request: an id chosen by the caller.
            prompt: token ids.
            max_new_tokens: maximum number of new tokens.
            sampling: sampling parameters.
            children: ids of further samples of the prompt, which share its blocks.
            priority: a smaller number is more urgent, under the priority policy.

        Raises:
            kvsim.core.scheduler.RequestRefusedError: the pool could never hold it.
            InvalidRequestError: an id is in use or reserved, the prompt is empty, a token id is
                invalid, or the request would exceed the maximum length.
        """
        self._queue(request, prompt, max_new_tokens, sampling, tuple(children), priority)

    def add_beam_search(
        self, request: int, prompt: Sequence[int], max_new_tokens: int, num_beams: int,
        stop_token_ids: Iterable[int] = (), *, priority: int = 0,
    ) -> None:  # fmt: skip
        """Queue a beam search with at least two beams; arguments and errors as in :meth:`add`.

        Its beams are separate sequences in the step plans: the first has the id of the request, the
        others ids from :data:`FIRST_BEAM_ID` on. :meth:`complete` reports only the request, once,
        at the end of the search.
        """
        stops = self.eos_token_ids.union(stop_token_ids)
        search = BeamSearch(request, num_beams, stops, max_new_tokens, {request: 0.0})
        self._queue(request, prompt, max_new_tokens, GREEDY, (), priority, search)

    def _queue(
        self, request: int, prompt: Sequence[int], max_new_tokens: int, sampling: SamplingParams,
        children: tuple[int, ...], priority: int, search: BeamSearch | None = None,
    ) -> None:  # fmt: skip
        ids = (request, *children)
        taken = any(i in self._generations or i in self._reserved_ids for i in ids)
        if taken or len(set(ids)) != len(ids):
            raise InvalidRequestError(f"request {request} or a child of it is already there")
        if max(ids) >= FIRST_BEAM_ID:
            raise InvalidRequestError(f"ids from {FIRST_BEAM_ID} on are reserved for beams")
        check_request(request, prompt, max_new_tokens, sampling, *self._limits)
        stops = sampling.stop_token_ids | self.eos_token_ids
        generation = Generation(
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            max_new_tokens=max_new_tokens,
            sampler=Sampler(replace(sampling, stop_token_ids=stops)),
            chain=KeyChain(self.blocks.block_size),
            priority=priority,
            children=children,
            search=search,
        )
        self.scheduler.add(generation.as_request(request))
        self._generations[request] = generation
        self._reserved_ids.update(children)
        if search is not None:
            self._beams.searches[request] = search

    def abort(self, request: int) -> bool:
        """Abort a request and free its blocks; False if it is neither waiting nor running."""
        search = self._beams.searches.get(request)
        if search is None:
            return self.scheduler.abort(request)
        # Aborting any beam aborts all; after the end of the search there is none.
        aborted = any(self.scheduler.abort(beam) for beam in search.scores)
        if aborted:
            self._beams.drop(search)
        return aborted

    def generated(self, request: int) -> list[int]:
        """Tokens generated so far; of a beam search the best hypothesis, at its end."""
        if request in self._beams.searches:
            return list(next((h.tokens for h in self.hypotheses(request)), ()))
        return self._generations[request].new_tokens

    def hypotheses(self, request: int) -> tuple[Hypothesis, ...]:
        """Hypotheses of a beam search, best first; empty until it has ended, or if aborted."""
        return self._beams.searches[request].hypotheses

    def forget(self, request: int) -> None:
        """Remove the tokens of a finished request."""
        self._reserved_ids.difference_update(self._generations.pop(request).children)
        self._beams.searches.pop(request, None)

    def shutdown(self) -> None:
        """Abort all waiting and running requests; afterwards every block is free."""
        for request in (*self.scheduler.running, *self.scheduler.waiting):
            self.scheduler.abort(request)
        self.pool.apply(self.scheduler.schedule())

    # -- steps -----------------------------------------------------------------------------

    def step(self) -> tuple[StepOutcome, tuple[Finish, ...]]:
        """Execute one step and complete it."""
        outcome = self.execute()
        return outcome, self.complete(outcome)

    def execute(self) -> StepOutcome:
        """Schedule and run one step; afterwards tables and tensors are in the state of the plan.

        Raises:
            InvalidLogitsError: the model returned NaN, or no finite logit.
        """
        plan = self.scheduler.schedule()
        self.pool.apply(plan)
        if not plan.chunks:
            return StepOutcome(plan)
        inputs = self._inputs(plan)
        logits = self.runner.logits(inputs)
        return self._sample(plan, inputs.sampled_requests, logits)

    def complete(self, outcome: StepOutcome) -> tuple[Finish, ...]:
        """Apply the forks and ends of a step, free blocks, and return the finished requests."""
        forks: dict[int, list[Request]] = {}
        for child, parent in outcome.forked.items():
            generation = self._generations.get(child)
            if generation is not None:  # otherwise its search was aborted during the step
                forks.setdefault(parent, []).append(generation.as_request(child))
        ended = [r for r, t in outcome.tokens.items() if self._generations[r].sampler.stops(t)]
        finished = self.scheduler.complete(
            outcome.plan, {*ended, *outcome.stopped}, forks, outcome.pruned
        )
        return tuple(self._beams.report(finished))

    def _inputs(self, plan: StepPlan) -> StepInputs:
        requests = [chunk.request for chunk in plan.chunks]
        tokens = {request: self._generations[request].tokens for request in requests}
        tables = {request: self.blocks.table(request) for request in requests}
        graphs = self.runner.graphs
        if graphs is not None and graphs.accepts(plan):
            return graphs.fill(plan, tokens, tables)
        size, device = self.blocks.block_size, self.pool.kv.device
        return build_inputs(plan, tokens, tables, size, device)

    def _sample(self, plan: StepPlan, requests: Sequence[int], logits: torch.Tensor) -> StepOutcome:
        outcome = StepOutcome(plan)
        rows = [i for i, r in enumerate(requests) if self._generations[r].search is None]
        if len(rows) < len(requests):
            check_logits(logits)  # before any beam moves
            self._beams.move(outcome, requests, logits)
        if rows:
            self._sample_alone(outcome, requests, rows, logits)
        return outcome

    def _sample_alone(
        self, outcome: StepOutcome, requests: Sequence[int], rows: list[int], logits: torch.Tensor
    ) -> None:
        """Sample the next tokens of ``rows`` (no beams), and first tokens of their samples.

        All samples of a prompt start from the logits of its last position.
        """
        draws = [(row, requests[row], self._generations[requests[row]].sampler) for row in rows]
        for row in rows:
            parent = self._generations[requests[row]]
            if not parent.generated:
                params, children = parent.sampler.params, enumerate(parent.children, 1)
                draws += [(row, child, Sampler(params, index)) for index, child in children]
        sources = [row for row, _, _ in draws]
        if sources != list(range(len(requests))):
            logits = logits[to_device(torch.tensor(sources), logits.device)]
        generated = [self._generations[requests[row]].generated for row in sources]
        chosen = sample_all(logits, [sampler for _, _, sampler in draws], generated)
        for row, child, sampler in draws[len(rows) :]:
            self._generations[child] = self._generations[requests[row]].fork(sampler=sampler)
            self._reserved_ids.discard(child)
            outcome.forked[child] = requests[row]
        for (_, sequence, _), token in zip(draws, chosen, strict=True):
            outcome.tokens[sequence] = token
            self._generations[sequence].tokens.append(token)
