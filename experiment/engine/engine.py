"""The engine loop: schedule, run, sample, complete.

    add(request) ─► scheduler ─► StepPlan ─► KVPool.apply ─► ModelRunner ─► sample ─► complete
                        ▲                                                               │
                        └───────────────────────────────────────────────────────────────┘

Everything about blocks is decided by :mod:`kvsim`; the engine carries it out on tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.sampling import GREEDY, Sampler, SamplingParams, sample_all
from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.blocks import BlockPool
from kvsim.prefix import KeyChain
from kvsim.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.step import Finish, StepPlan


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did: its plan, and the token that it gave to each request that sampled.

    ``forked`` are parallel samples that begin here, each with the id of its parent.
    """

    plan: StepPlan
    tokens: dict[int, int]
    forked: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine at one moment: block ids and request ids."""

    free_blocks: int
    cached_blocks: int
    owners: dict[int, tuple[int, ...]]
    running: tuple[int, ...]
    waiting: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Generation:
    """A request's tokens and how it samples."""

    tokens: list[int]
    prompt_tokens: int
    max_new_tokens: int
    sampler: Sampler
    chain: KeyChain
    priority: int
    children: tuple[int, ...]

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens


class Engine:
    """Generates for many requests at once over one paged KV pool.

    Args:
        runner: the model and its pool.
        config: limits and policies of the scheduler.
        eos_token_id: ends a request when generated; None to ignore.
        vocab_size: token ids from this on are refused; None to leave that to the caller.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: SchedulerConfig | None = None,
        eos_token_id: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self.runner = runner
        self.blocks = BlockPool(runner.pool.num_blocks, runner.pool.block_size)
        self.scheduler = Scheduler(self.blocks, config)
        self.eos_token_id = eos_token_id
        self.vocab_size = vocab_size
        self._generations: dict[int, _Generation] = {}

    @property
    def pool(self) -> KVPool:
        """The tensors of the pool."""
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
        salt: str = "",
    ) -> None:
        """Queue a request.

        Args:
            request: an id of the caller's choice.
            prompt: token ids.
            max_new_tokens: where it ends at the latest.
            sampling: how it samples.
            children: ids of further samples of the same prompt: they share its blocks from
                their first token on.
            priority: a smaller number is more urgent, under the priority policy.
            salt: requests with different salts share no prefix blocks.

        Raises:
            kvsim.scheduler.RequestRefusedError: the pool could never hold it.
            ValueError: an id is in use, there is nothing to compute, or a token id is not one.
        """
        ids = (request, *children)
        if len(set(ids)) != len(ids) or any(i in self._generations for i in ids):
            raise ValueError(f"request {request} or a child of it is already there")
        if self.vocab_size is not None:
            wrong = [token for token in prompt if not 0 <= token < self.vocab_size]
            if wrong:
                raise ValueError(f"request {request}: no such token: {wrong[0]}")
        chain = KeyChain(self.blocks.block_size, salt)
        generation = _Generation(
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            max_new_tokens=max_new_tokens,
            sampler=Sampler(self._with_eos(sampling)),
            chain=chain,
            priority=priority,
            children=tuple(children),
        )
        self.scheduler.add(self._request(request, generation))
        self._generations[request] = generation

    def abort(self, request: int) -> bool:
        """End a request now and give its blocks back; False when it does not wait or run."""
        return self.scheduler.abort(request)

    def generated(self, request: int) -> list[int]:
        """Tokens generated so far for ``request``."""
        generation = self._generations[request]
        return generation.tokens[generation.prompt_tokens :]

    def forget(self, request: int) -> None:
        """Drop the tokens of a request that has ended."""
        del self._generations[request]

    def status(self) -> EngineStatus:
        """Who holds what, who runs and who waits."""
        return EngineStatus(
            free_blocks=self.blocks.num_free,
            cached_blocks=self.blocks.num_cached,
            owners={r: tuple(self.blocks.table(r)) for r in self.blocks.owners},
            running=self.scheduler.running,
            waiting=self.scheduler.waiting,
        )

    def stream(self) -> Iterator[tuple[int, int | None]]:
        """Run to the end; yield (request, token) as they come, and (request, None) at its end.

        Requests may be added and aborted between two tokens.
        """
        while self.scheduler.has_work:
            outcome, finished = self.step()
            yield from outcome.tokens.items()
            for finish in finished:
                yield finish.request, None

    def shutdown(self) -> None:
        """Abort whatever waits or runs; afterwards every block is free."""
        for request in (*self.scheduler.running, *self.scheduler.waiting):
            self.scheduler.abort(request)
        self.pool.apply(self.scheduler.schedule())

    # -- steps -----------------------------------------------------------------------------

    def step(self) -> tuple[StepOutcome, tuple[Finish, ...]]:
        """Execute one step and complete it."""
        outcome = self.execute()
        return outcome, self.complete(outcome)

    def execute(self) -> StepOutcome:
        """Plan one step and run it; afterwards tables and tensors are as the plan left them.

        Raises:
            InvalidLogitsError: the model returned NaN.
        """
        plan = self.scheduler.schedule()
        self.pool.apply(plan)
        if not plan.chunks:
            return StepOutcome(plan, {})
        inputs = self._inputs(plan)
        logits = self.runner.logits(inputs)
        return self._sample(plan, inputs.sampled_requests, logits)

    def complete(self, outcome: StepOutcome) -> tuple[Finish, ...]:
        """Fork what begins here and end what is done; its blocks are free from now on."""
        forks: dict[int, list[Request]] = {}
        for child, parent in outcome.forked.items():
            forks.setdefault(parent, []).append(self._request(child, self._generations[child]))
        stopped = [r for r, t in outcome.tokens.items() if self._generations[r].sampler.stops(t)]
        return self.scheduler.complete(outcome.plan, stopped, forks)

    def _inputs(self, plan: StepPlan) -> StepInputs:
        requests = [chunk.request for chunk in plan.chunks]
        return build_inputs(
            plan,
            {request: self._generations[request].tokens for request in requests},
            {request: self.blocks.table(request) for request in requests},
            self.blocks.block_size,
            self.pool.kv.device,
        )

    def _sample(self, plan: StepPlan, requests: Sequence[int], logits: torch.Tensor) -> StepOutcome:
        generations = [self._generations[request] for request in requests]
        samplers = [generation.sampler for generation in generations]
        chosen = sample_all(logits, samplers, [g.generated for g in generations])
        tokens = dict(zip(requests, chosen, strict=True))
        forked: dict[int, int] = {}
        for row, (request, generation) in enumerate(zip(requests, generations, strict=True)):
            if generation.children and not generation.generated:
                self._fork(request, generation, logits[row], tokens, forked)
        for request, token in tokens.items():
            self._generations[request].tokens.append(token)
        return StepOutcome(plan, tokens, forked)

    def _fork(
        self,
        request: int,
        parent: _Generation,
        logits: torch.Tensor,
        tokens: dict[int, int],
        forked: dict[int, int],
    ) -> None:
        """Draw the first token of every further sample from the logits of the same prompt."""
        for index, child in enumerate(parent.children, 1):
            sampler = Sampler(parent.sampler.params, index)
            self._generations[child] = _Generation(
                tokens=list(parent.tokens),
                prompt_tokens=parent.prompt_tokens,
                max_new_tokens=parent.max_new_tokens,
                sampler=sampler,
                chain=parent.chain.fork(),
                priority=parent.priority,
                children=(),
            )
            tokens[child] = sampler(logits, 0)
            forked[child] = request

    def _request(self, request: int, generation: _Generation) -> Request:
        return Request(
            request,
            generation.prompt_tokens,
            generation.max_new_tokens,
            keys=lambda count: generation.chain.keys(generation.tokens, count),
            priority=generation.priority,
        )

    def _with_eos(self, sampling: SamplingParams) -> SamplingParams:
        if self.eos_token_id is None:
            return sampling
        stops = sampling.stop_token_ids | {self.eos_token_id}
        return SamplingParams(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, stops,
            sampling.min_new_tokens,
        )  # fmt: skip
