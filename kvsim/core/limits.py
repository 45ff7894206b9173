"""Limits and policies of a scheduler, and the error for a request that exceeds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args


class RequestRefusedError(Exception):
    """The request can never run and was not queued.

    ``needed`` and ``available`` are in units of ``limit``: blocks of the pool, running sequences
    (seqs), or tokens computed in one step.
    """

    def __init__(
        self,
        request: int,
        needed: int,
        available: int,
        limit: Literal["blocks", "seqs", "tokens"] = "blocks",
    ) -> None:
        super().__init__(f"request {request} needs {needed} {limit}, there are {available}")
        self.request = request
        self.needed = needed
        self.available = available
        self.limit = limit


SchedulingPolicy = Literal["fcfs", "priority"]
PreemptionKind = Literal["recompute", "swap"]
Admission = Literal["full", "first_chunk"]
SchedulerVersion = Literal["vllm-0.32", "vllm-0.33"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies, named as in vLLM's ``SchedulerConfig``.

    Attributes:
        max_num_seqs: concurrent requests; a beam search counts as its width.
        max_num_active_seqs: the same, where fewer are to run than the engine has room for.
        max_num_batched_tokens: tokens computed in one step.
        max_num_scheduled_tokens: the same, where fewer are to be scheduled.
        long_prefill_token_threshold: tokens of one request in a step while there are other
            requests (chunked prefill); 0: no limit.
        long_prefill_token_threshold_adaptive: raise that limit to max_num_batched_tokens / number
            of requests.
        prefill_schedule_interval: steps from one with prefill to the next, while requests decode
            and the last prefill left none waiting.
        admission: a waiting request is admitted if blocks are free for all its tokens (full) or
            for those of its first chunk (first_chunk); vLLM's ``scheduler_reserve_full_isl``.
        watermark_blocks: free blocks that admission reserves for running requests.
        scheduler: with the priority policy, a running request that preempts itself ends the pass
            over the running requests in vLLM 0.32; since 0.33 those after it have their turn.
        policy: fcfs, or priority (priority, then arrival).
        preemption: how a preempted request is restored.
        host_blocks: blocks of host memory for swapping; when they are used up, recompute.
        prefix_caching: keep full blocks and find them by their content.

    Raises:
        ValueError: a limit out of range or an unknown policy.
    """

    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: int = 1
    admission: Admission = "full"
    watermark_blocks: int = 0
    scheduler: SchedulerVersion = "vllm-0.33"
    policy: SchedulingPolicy = "fcfs"
    preemption: PreemptionKind = "recompute"
    host_blocks: int = 0
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        limits = (self.max_num_seqs, self.max_num_batched_tokens, self.prefill_schedule_interval)
        if min(*limits, self.active_seqs, self.token_budget) < 1:
            raise ValueError(f"limits must be positive: {self}")
        if self.active_seqs > self.max_num_seqs or self.token_budget > self.max_num_batched_tokens:
            raise ValueError(f"more than max_num_seqs or max_num_batched_tokens: {self}")
        if self.prefill_schedule_interval > 1 and self.scheduler == "vllm-0.32":
            raise ValueError("prefill_schedule_interval needs the scheduler of vllm-0.33")
        if min(self.watermark_blocks, self.host_blocks, self.long_prefill_token_threshold) < 0:
            raise ValueError(f"limits must not be negative: {self}")
        known = (
            ("policy", get_args(SchedulingPolicy)), ("preemption", get_args(PreemptionKind)),
            ("admission", get_args(Admission)), ("scheduler", get_args(SchedulerVersion)),
        )  # fmt: skip
        for name, values in known:
            if getattr(self, name) not in values:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}")

    @property
    def active_seqs(self) -> int:
        """Requests that may run."""
        known = self.max_num_active_seqs
        return self.max_num_seqs if known is None else known

    @property
    def token_budget(self) -> int:
        """Tokens that a step may compute."""
        known = self.max_num_scheduled_tokens
        return self.max_num_batched_tokens if known is None else known
