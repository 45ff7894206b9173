"""Limits and policies of a scheduler, and the error for a request that exceeds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvsim.core.queues import SchedulingPolicy


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


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits and policies.

    Attributes:
        max_num_seqs: concurrent requests; a beam search counts as its width.
        max_num_batched_tokens: tokens computed in one step.
        long_prefill_token_threshold: tokens of one request in a step while there are other
            requests (chunked prefill); 0: no limit.
        watermark_blocks: free blocks that admission reserves for running requests.
        policy: fcfs, or priority (priority, then arrival).
        preemption: how a preempted request is restored.
        host_blocks: blocks of host memory for swapping; when they are used up, recompute.
        prefix_caching: keep full blocks and find them by their content.

    Raises:
        ValueError: a limit out of range or an unknown policy.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0
    policy: SchedulingPolicy = "fcfs"
    preemption: Literal["recompute", "swap"] = "recompute"
    host_blocks: int = 0
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_num_batched_tokens < 1:
            raise ValueError(f"limits must be positive: {self}")
        if min(self.watermark_blocks, self.host_blocks, self.long_prefill_token_threshold) < 0:
            raise ValueError(f"limits must not be negative: {self}")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"unknown policy {self.policy!r}")
        if self.preemption not in ("recompute", "swap"):
            raise ValueError(f"unknown preemption {self.preemption!r}")
