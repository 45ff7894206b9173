"""Events of the vLLM worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from experiment.events import Channel, PoolReserved, Reading, Scope, Stage
from experiment.process.wire import Wire
from experiment.text.messages import message
from experiment.vllm_worker.task import VllmTask
from experiment.workload.arm_reporter import ArmReporter
from kvsim.sizing.vllm_capacity import NULL_BLOCKS

_SPINS_S = 1.2  # SpinCondition of vLLM 0.32 spins for one


class Reporter(ArmReporter):
    """The vLLM arm.

    ``ranks`` queries the report of every rank; None until the weights are loaded.
    """

    task: VllmTask

    def __init__(self, wire: Wire, task: VllmTask, decode: Callable[[list[int]], str]) -> None:
        super().__init__(wire, task)
        self.ranks: Callable[[], list[dict[str, Any]]] | None = None
        self._decode = decode

    def text_of(self, tokens: list[int]) -> str:
        """Decode tokens."""
        return self._decode(tokens)

    def pool(self, blocks: int, block_size: int, watermark: float) -> None:
        """Report the cache, with its bytes from every rank, and mark CACHE_READY.

        ``watermark`` is the share of blocks that vLLM withholds from waiting requests.
        """
        task = self.task
        size = blocks * block_size * task.model.slot_bytes
        self.emit(
            PoolReserved(
                arm=task.arm,
                blocks=blocks,
                block_size=block_size,
                slot_bytes=task.model.slot_bytes,
                watermark_blocks=int(watermark * blocks),
                engine_blocks=NULL_BLOCKS,
                tensor_bytes=self._kv_bytes(),
                budget_bytes=task.workload.budget_bytes,
            )
        )
        self.emit(self._reading(Channel.FORMULA, Scope.TENSOR, size, Stage.CACHE_READY))
        self.mark(Stage.CACHE_READY)

    def readings(self, stage: Stage, request: int | None) -> list[Reading]:
        """torch's counters of the ranks, and their tensors; those of this process are always 0."""
        reports = self.ranks() if self.ranks else []
        found = []
        for channel, key in (
            (Channel.TORCH_ALLOCATED, "torch_allocated"),
            (Channel.TORCH_RESERVED, "torch_reserved"),
        ):
            sizes = [report[key] for report in reports]
            size = sum(sizes) if sizes and None not in sizes else None
            found.append(self._reading(channel, Scope.TREE, size, stage, request))
        if stage not in (Stage.START, Stage.LOADED):
            size = self._kv_bytes()
            found.append(self._reading(Channel.TENSORS, Scope.TENSOR, size, stage, request))
        return found

    def _await_turn(self) -> None:
        """Wait until the next repeat may begin.

        vLLM's workers poll for the next step and sleep only a second after the last one. Until then
        they would occupy a core during another arm's turn.
        """
        time.sleep(_SPINS_S)
        super()._await_turn()

    def _kv_bytes(self) -> int:
        return sum(report["kv_bytes"] for report in self.ranks()) if self.ranks else 0

    def _reading(
        self, channel: Channel, scope: Scope, size: int | None, stage: Stage,
        request: int | None = None,
    ) -> Reading:  # fmt: skip
        where = "cpu" if self.task.device == "cpu" else "elsewhere"
        return Reading(
            arm=self.task.arm,
            channel=channel,
            scope=scope,
            bytes=size,
            reason=message(f"memory.torch_{where}") if size is None else None,
            stage=stage,
            request=request,
            device=self.task.device,
        )
