"""The engine loop: schedule, run, sample, complete.

add(request) ─► scheduler ─► StepPlan ─► KVPool.apply ─► ModelRunner ─► sample ─► complete
                    ▲                                                               │
                    └───────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from experiment.engine.kv_pool import KVPool
from experiment.engine.model_runner import ModelRunner
from experiment.engine.step_inputs import build_inputs
from kvsim.blocks import BlockPool
from kvsim.scheduler import Request, Scheduler, SchedulerConfig
from kvsim.step import Finish, StepPlan


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did: its plan, and the token that it gave to each request that sampled."""

    plan: StepPlan
    tokens: dict[int, int]


class Engine:
    """Generates greedily for many requests over one paged KV pool.

    Args:
        runner: the model and its pool.
        config: limits of a step.
        eos_token_id: ends a request when generated; None to ignore.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: SchedulerConfig | None = None,
        eos_token_id: int | None = None,
    ) -> None:
        self.runner = runner
        self.blocks = BlockPool(runner.pool.num_blocks, runner.pool.block_size)
        self.scheduler = Scheduler(self.blocks, config)
        self.eos_token_id = eos_token_id
        self._tokens: dict[int, list[int]] = {}
        self._prompt_tokens: dict[int, int] = {}

    @property
    def pool(self) -> KVPool:
        """The tensors of the pool."""
        return self.runner.pool

    def add(self, request: int, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Queue a request.

        Raises:
            kvsim.scheduler.RequestRefusedError: the pool could never hold it.
            ValueError: the id is in use, or there is nothing to compute.
        """
        if request in self._tokens:
            raise ValueError(f"request {request} is already there")
        self.scheduler.add(Request(request, len(prompt), max_new_tokens))
        self._tokens[request] = list(prompt)
        self._prompt_tokens[request] = len(prompt)

    def abort(self, request: int) -> bool:
        """End a request now; False when it is not waiting or running."""
        return self.scheduler.abort(request)

    def generated(self, request: int) -> list[int]:
        """Tokens generated so far for ``request``."""
        return self._tokens[request][self._prompt_tokens[request] :]

    def forget(self, request: int) -> None:
        """Drop the tokens of a request that has ended."""
        del self._tokens[request], self._prompt_tokens[request]

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
        tokens = self._run(plan) if plan.chunks else {}
        for request, token in tokens.items():
            self._tokens[request].append(token)
        return StepOutcome(plan, tokens)

    def complete(self, outcome: StepOutcome) -> tuple[Finish, ...]:
        """End the requests that are done; their blocks are free from now on."""
        stopped = [r for r, token in outcome.tokens.items() if token == self.eos_token_id]
        return self.scheduler.complete(outcome.plan, stopped)

    def _run(self, plan: StepPlan) -> dict[int, int]:
        tables = {chunk.request: self.blocks.table(chunk.request) for chunk in plan.chunks}
        inputs = build_inputs(
            plan, self._tokens, tables, self.blocks.block_size, self.pool.kv.device
        )
        logits = self.runner.logits(inputs)
        if not inputs.sampled_requests:
            return {}
        chosen = torch.argmax(logits, dim=-1).tolist()
        return dict(zip(inputs.sampled_requests, chosen, strict=True))
