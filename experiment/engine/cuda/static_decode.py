"""Inputs of the decode step in static tensors, for graphs that replay fixed addresses.

    sizes 1, 2, 4, 8, 16 ...     three requests decode: size 4, one row of padding
                                   row     0      1      2      3
    token ids     [4]                     17      5     91      0
    positions     [4]                     12      3     40      0
    slot blocks   [4]                      7      2      9     -1    dropped: no slot is written
    slot offsets  [4]                     12      3      8      0
    contexts      [4]                     13      4     41      0    attends to nothing, gives 0
    tables        [4, width]           [7 .]  [2 .] [4 1 9]  [. .]
    logits        [4, vocabulary]      row 0  row 1  row 2   ignored

A step's inputs are assembled on the host and copied over those of the previous step. Rows of
padding take time but no memory of the pool; they are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiment.engine.step_inputs import FlatSequences, StepInputs
from kvsim.core.step import StepPlan

DROPPED = -1


@dataclass(frozen=True)
class StaticInputs(StepInputs):
    """A decode step over static tensors; the first ``sampled_requests`` rows are requests.

    Attributes:
        max_length: maximum context of any replay.
    """

    max_length: int

    @property
    def live(self) -> torch.Tensor:
        """Rows that are not padding, [rows]."""
        return self.slot_blocks >= 0

    @property
    def touched(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A block for each row; padding repeats the first row's, or 0 if that is padding too."""
        blocks = torch.where(self.live, self.slot_blocks, self.slot_blocks[0]).clamp(min=0)
        return blocks, self.sampled_rows

    @property
    def longest(self) -> int:
        """Maximum context of any replay."""
        return self.max_length

    def tiles(self, queries: int) -> torch.Tensor:  # noqa: ARG002 - there are none of any size
        """Empty: each sequence has one query."""
        return self.decoding.new_empty((0, 2))


class StaticBuffers:
    """The tensors of the drawing above, for the largest size; smaller sizes are their first rows.

    Args:
        rows: the largest size.
        max_length: positions of a request.
        block_size: slots in a block.
        device: where the model runs.
    """

    def __init__(self, rows: int, max_length: int, block_size: int, device: torch.device) -> None:
        width = -(-max_length // block_size)
        self.max_length = max_length
        self.block_size = block_size
        # Pinned: copies are asynchronous and need no staging buffer.
        pinned = device.type == "cuda"
        self._host = [
            torch.zeros((4, rows), dtype=torch.long, pin_memory=pinned),
            torch.zeros(rows, dtype=torch.int32, pin_memory=pinned),
            torch.zeros((rows, width), dtype=torch.int32, pin_memory=pinned),
        ]
        self._device = [tensor.to(device, copy=True) for tensor in self._host]
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(rows, device=device)
        self._tables: list[list[int]] = [[] for _ in range(rows)]  # present content of each row
        self.clear(rows)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors on the device."""
        return [*self._device, self._starts, self._rows]

    def inputs(self, size: int, requests: tuple[int, ...] = ()) -> StaticInputs:
        """Inputs of the first ``size`` rows; ``requests`` are those of the first rows."""
        numbers, contexts, tables = self._device
        return StaticInputs(
            input_ids=numbers[0, :size][None],
            position_ids=numbers[1, :size][None],
            slot_blocks=numbers[2, :size],
            slot_offsets=numbers[3, :size],
            sequences=(),
            flat=FlatSequences(tables[:size], contexts[:size], self._starts[: size + 1]),
            decoding=self._starts[:size],
            sampled_rows=self._rows[:size],
            sampled_requests=requests,
            blocks=(),
            max_length=self.max_length,
        )

    def clear(self, size: int) -> None:
        """Make the first ``size`` rows padding."""
        self._pad(0, size)
        self._send(size)

    def fill(
        self, plan: StepPlan, tokens: Mapping[int, Sequence[int]],
        tables: Mapping[int, Sequence[int]], size: int,
    ) -> None:  # fmt: skip
        """Fill one row for each chunk of ``plan``, and padding up to ``size``."""
        numbers, contexts, held = (tensor.numpy() for tensor in self._host)
        columns = []
        for row, chunk in enumerate(plan.chunks):
            block, offset = divmod(chunk.start, self.block_size)
            table = list(tables[chunk.request][: block + 1])
            columns.append((tokens[chunk.request][chunk.start], chunk.start, table[block], offset))
            # Tables change rarely; comparing lists is cheaper than writing them.
            if table != self._tables[row]:
                held[row, : block + 1] = self._tables[row] = table
        live = len(columns)
        if columns:
            numbers[:, :live] = np.array(columns).T
            contexts[:live] = numbers[1, :live] + 1
        self._pad(live, size)
        self._send(size)

    def _pad(self, first: int, size: int) -> None:
        numbers, contexts, held = self._host
        numbers[:, first:size] = 0
        numbers[2, first:size] = DROPPED
        contexts[first:size] = 0
        for row in range(first, size):
            if self._tables[row]:
                held[row] = 0
                self._tables[row] = []

    def _send(self, size: int) -> None:
        """Copy asynchronously; sampling synchronises before the host buffers are reused."""
        for source, target in zip(self._host[:2], self._device[:2], strict=True):
            target.copy_(source, non_blocking=True)
        self._device[2][:size].copy_(self._host[2][:size], non_blocking=True)
