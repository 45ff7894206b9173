"""What an engine that is not ours said of itself, beside what could be foretold and counted."""

from __future__ import annotations

from collections.abc import Sequence

from experiment.analysis.results import EngineResult
from experiment.events import EngineReported, EngineStep, PoolReserved
from experiment.text.messages import Message, message
from kvsim.sizing.vllm_capacity import VllmCapacity


def engine_result(
    said: EngineReported | None, pool: PoolReserved | None, steps: Sequence[EngineStep]
) -> EngineResult | None:
    """The engine's own figures; None for an arm that has no engine but ours."""
    if said is None:
        return None
    block_bytes = pool.slot_bytes * said.block_size if pool else None
    foretold = None
    if pool and block_bytes:
        blocks = pool.budget_bytes // block_bytes
        foretold = VllmCapacity(blocks, said.block_size, said.max_length)
    same = {"arm", "event", "t_ns", "block_size"}
    return EngineResult(
        **said.model_dump(exclude=same),
        block_bytes=block_bytes,
        foretold_tokens=foretold.tokens if foretold else None,
        foretold_concurrency=foretold.max_concurrency if foretold else None,
        preempted=sum(step.preempted for step in steps),
        prefix_queries=sum(step.prefix_queries for step in steps),
        prefix_hits=sum(step.prefix_hits for step in steps),
        watched_steps=len(steps),
    )


def engine_problems(steps: Sequence[EngineStep]) -> list[Message]:
    """Steps after which its count of blocks in use is not that of its block tables."""
    wrong = [step for step in steps if step.used_blocks != step.table_blocks]
    if not wrong:
        return []
    first = wrong[0]
    return [
        message(
            "problem.engine_blocks",
            n=len(wrong), step=first.step, reported=first.used_blocks, tables=first.table_blocks,
        )
    ]  # fmt: skip
