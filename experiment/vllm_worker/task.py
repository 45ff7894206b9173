"""Task of the vLLM worker: the same budget, lengths and dtype as the other arms."""

from __future__ import annotations

from typing import Any

from experiment.workload.arm_reporter import PreparedTask
from experiment.workload.first_prompts import first_prompts, needs_warm_up


class VllmTask(PreparedTask):
    """Inputs of the worker.

    ``arguments`` are those of vLLM's ``EngineArgs``. ``block_size`` is this arm's, which may differ
    from the workload's on the CPU. ``log`` is the file for all output. ``timed``: requests arrive
    by wall time, otherwise by steps. ``repeats`` are measured repeats of an experiment, after a
    warm-up; 0: the workload runs once.
    """

    block_size: int
    ignore_eos: bool
    arguments: dict[str, Any]
    log: str | None = None
    timed: bool = False
    repeats: int = 0

    def first_prompts(self) -> list[int]:
        """Lengths in tokens of the warm-up prompts.

        The same as in the other arms. One token if there are none, if none are due, and if a prefix
        cache would find them later.
        """
        limits = self.arguments
        if not needs_warm_up(self.repeats) or limits.get("enable_prefix_caching"):
            return [1]
        return first_prompts(self.workload, limits["max_num_batched_tokens"]) or [1]
