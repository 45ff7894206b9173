"""Capture decode steps once for each padded batch size, and replay them.

    3 requests ─► size 4 ─► fill the static tensors ─► replay graph 4 ─► logits[:3]

    captured, from the largest down     1   2   4   8   16 ...    one memory pool for all of them:
    work of a graph                     forward, logits ─► static logits    never concurrent

Only steps of single sampling tokens are decode steps; others run eagerly. The capture function is a
parameter: :func:`cuda_capture` on CUDA, others in tests, which check the padding without a GPU.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from experiment.engine.cuda.static_decode import StaticBuffers, StaticInputs
from experiment.engine.step_inputs import StepInputs
from kvsim.core.step import StepPlan

# Takes the work of a step and returns its replay; the work reads and writes static tensors.
Work = Callable[[], None]
Capture = Callable[[Work], Work]
Forward = Callable[[StepInputs], torch.Tensor]


def padded_sizes(most: int) -> tuple[int, ...]:
    """Batch sizes to capture for ``most`` requests: 1, 2, 4, 8, multiples of 16, and ``most``."""
    return (*(size for size in (1, 2, 4, 8) if size < most), *range(16, most, 16), most)


def cuda_capture(device: torch.device) -> Capture:
    """Return a function that captures CUDA graphs with a shared memory pool.

    The work runs twice before, on the capturing stream, so that libraries are initialised.
    """
    cuda: Any = torch.cuda  # torch has no types for some of these
    stream, pool = cuda.Stream(device), cuda.graph_pool_handle()

    def capture(work: Work) -> Work:
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            work()
            work()
        cuda.current_stream(device).wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, pool=pool, stream=stream):
            work()
        replay: Work = graph.replay
        return replay

    return capture


@dataclass
class DecodeCounts:
    """Replayed steps, rows of requests, and additional rows of padding."""

    steps: int = 0
    rows: int = 0
    padding_rows: int = 0


class DecodeGraphs:
    """CUDA graphs of the decode step for all sizes up to the largest.

    Args:
        forward: logits of a step, [rows, vocabulary]; must not synchronise with the device.
        buffers: static tensors, as large as the largest of ``sizes``.
        sizes: ascending.
        capture: captures a graph.

    Raises:
        RuntimeError: capturing failed, or memory is exhausted.
        UnsupportedModelError: the model depends on the lengths of contexts.
    """

    def __init__(
        self, forward: Forward, buffers: StaticBuffers, sizes: Sequence[int], capture: Capture
    ) -> None:
        began = time.perf_counter()
        self.sizes = tuple(sizes)
        self.counts = DecodeCounts()
        self._buffers = buffers
        self._logits: torch.Tensor | None = None
        buffers.clear(self.sizes[-1])
        # The largest first: the others reuse its memory.
        self._graphs = {
            size: capture(self._work(forward, buffers.inputs(size)))
            for size in reversed(self.sizes)
        }
        self.capture_s = time.perf_counter() - began

    @property
    def static_bytes(self) -> int:
        """Bytes of the static tensors on the device, logits included."""
        kept = [*self._buffers.tensors, *([] if self._logits is None else [self._logits])]
        return sum(tensor.nbytes for tensor in kept)

    def accepts(self, plan: StepPlan) -> bool:
        """Whether a plan is a decode step with at most the largest number of requests."""
        return 0 < len(plan.chunks) <= self.sizes[-1] and all(
            chunk.count == 1 and chunk.samples and chunk.start < self._buffers.max_length
            for chunk in plan.chunks
        )

    def fill(
        self, plan: StepPlan, tokens: Mapping[int, Sequence[int]],
        tables: Mapping[int, Sequence[int]],
    ) -> StaticInputs:  # fmt: skip
        """Copy the inputs of an accepted plan into the static tensors, until the next call."""
        requests = tuple(chunk.request for chunk in plan.chunks)
        size = self.sizes[bisect_left(self.sizes, len(requests))]
        self._buffers.fill(plan, tokens, tables, size)
        return self._buffers.inputs(size, requests)

    def replay(self, inputs: StaticInputs) -> torch.Tensor:
        """Logits of the last filled step, [requests, vocabulary], until the next replay."""
        size, live = inputs.slot_blocks.numel(), len(inputs.sampled_requests)
        self._graphs[size]()
        self.counts.steps += 1
        self.counts.rows += live
        self.counts.padding_rows += size - live
        assert self._logits is not None
        return self._logits[:live]

    def _work(self, forward: Forward, inputs: StaticInputs) -> Work:
        size = inputs.slot_blocks.numel()

        def work() -> None:
            logits = forward(inputs)
            if self._logits is None:  # in the first, uncaptured run of the largest
                self._logits = torch.empty_like(logits)
            self._logits[:size].copy_(logits)

        return work
