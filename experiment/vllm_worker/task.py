"""What the runner asks of vLLM: the same budget, lengths and precision as of the other arms."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from experiment.events import ModelPrepared, WorkloadReady
from experiment.workload.first_prompts import are_due, first_prompts


class VllmTask(BaseModel):
    """Everything that the worker is told.

    ``arguments`` are those of vLLM's ``EngineArgs``; ``block_size`` is this arm's, which on the
    CPU may differ from the workload's. ``log`` is where everything that is printed goes.
    ``timed``: requests arrive by the wall clock, else by steps.
    ``repeats`` are those of an experiment, behind one that warms up; 0: the workload runs once.
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
        """Lengths, in tokens, of prompts that are run before the clock starts.

        Those that the other arms compute. One token where there is none, where none are due, and
        where what they leave could be found again.
        """
        limits = self.arguments
        if not are_due(self.repeats) or limits.get("enable_prefix_caching"):
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
    """Arguments of vLLM's engine.

    Args:
        directory: the prepared weights.
        model: their facts.
        workload: budget and maximum length.
        block_size: slots in a block.
        limits: ``max_num_seqs`` and the like, parallel sizes among them, from the config.
        extra: ``vllm.args`` of the config.
    """
    ranks = limits["tensor_parallel_size"] * limits["pipeline_parallel_size"]
    return {
        "model": directory,
        "skip_tokenizer_init": True,  # token ids go in and come out
        "dtype": model.dtype,
        "max_model_len": workload.max_length,
        "block_size": block_size,
        # vLLM takes it for each rank; all ranks together may have the budget.
        "kv_cache_memory_bytes": workload.budget_bytes // ranks,
        "disable_log_stats": False,  # its statistics are read after each step
        "async_scheduling": False,  # a step has ended when its tables are read
        "generation_config": "vllm",  # no sampling defaults out of the model's directory
        **limits,
        **extra,
    }
