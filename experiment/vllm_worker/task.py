"""Task of the vLLM worker: the same budget, lengths and dtype as the other arms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.events import ModelPrepared, WorkloadReady
from experiment.workload.first_prompts import first_prompts, needs_warm_up


class VllmTask(BaseModel):
    """Inputs of the worker.

    ``arguments`` are those of vLLM's ``EngineArgs``. ``block_size`` is this arm's, which may differ
    from the workload's on the CPU. ``log`` is the file for all output. ``timed``: requests arrive
    by wall time, otherwise by steps. ``repeats`` are measured repeats of an experiment, after a
    warm-up; 0: the workload runs once.
    """

    model_config = ConfigDict(frozen=True)

    arm: str
    directory: str
    device: str
    model: ModelPrepared
    workload: WorkloadReady
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


def engine_arguments(
    directory: str,
    model: ModelPrepared,
    workload: WorkloadReady,
    block_size: int,
    limits: dict[str, Any],
    extra: dict[str, Any],
) -> dict[str, Any]:
    """Build the arguments of vLLM's engine.

    Args:
        directory: the prepared weights.
        model: facts about the model.
        workload: budget and maximum length.
        block_size: slots in a block.
        limits: ``max_num_seqs`` and the like from the config, parallel sizes included.
        extra: ``vllm.args`` of the config.
    """
    ranks = limits["tensor_parallel_size"] * limits["pipeline_parallel_size"]
    return {
        "model": directory,
        "skip_tokenizer_init": True,  # token ids in and out
        "dtype": model.dtype,
        "max_model_len": workload.max_length,
        "block_size": block_size,
        # Per rank; the budget is for all ranks together.
        "kv_cache_memory_bytes": workload.budget_bytes // ranks,
        "disable_log_stats": False,  # read after each step
        "async_scheduling": False,  # a step has ended when its tables are read
        "generation_config": "vllm",  # no sampling defaults from the model's directory
        **limits,
        **extra,
    }
