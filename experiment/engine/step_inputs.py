"""Tensors of a step plan for the forward pass, built once per step.

    int64   token ids | positions | slot blocks | slot offsets | sampled rows |
            contexts | starts | decoding | tables, padded               these as int32

All are parts of one tensor: one copy to the device, from pinned memory on a GPU.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch

from kvsim.core.step import StepPlan

# From this product of queries (less one) and context on, matrix products on gathered keys and
# values are faster than reading in place.
SDPA_FROM = 1024


@dataclass(frozen=True, slots=True)
class PackedSequence:
    """One request's part of a packed step.

    Attributes:
        rows: its tokens in the packed batch.
        context: positions that the last of these tokens attends to, itself included.
        table: physical blocks of these positions, int32 [blocks], on the pool's device.
    """

    rows: slice
    context: int
    table: torch.Tensor

    @property
    def queries(self) -> int:
        """Number of its tokens in this step."""
        count: int = self.rows.stop - self.rows.start
        return count


class FlatSequences(NamedTuple):
    """All sequences of a step as three int32 tensors, for kernels that read blocks in place.

        tables    7 2 5     contexts  37     starts  0
                  4 . .               16             1      rows [starts[i], starts[i + 1])
                  1 9 .               20             6      belong to sequence i
                                                     7

    Attributes:
        tables: [sequences, most blocks]; entries beyond the end of a table are never read.
        contexts: [sequences].
        starts: [sequences + 1], first row of each sequence, and the number of rows.
    """

    tables: torch.Tensor
    contexts: torch.Tensor
    starts: torch.Tensor


# No slots: cached properties are stored in the instance.
@dataclass(frozen=True)
class StepInputs:
    """A packed step: the tokens of all requests, concatenated without padding.

    Attributes:
        input_ids: [1, tokens].
        position_ids: [1, tokens].
        slot_blocks: [tokens], physical block of each token's K and V.
        slot_offsets: [tokens], slot in that block.
        sequences: per request, in the order of the plan's chunks.
        flat: the same as tensors.
        decoding: int32 [sequences with one query], their indices.
        sampled_rows: [requests that sample], their last row in the packed batch.
        sampled_requests: their ids, in the same order.
        blocks: ``slot_blocks`` on the host; empty for static tensors.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slot_blocks: torch.Tensor
    slot_offsets: torch.Tensor
    sequences: tuple[PackedSequence, ...]
    flat: FlatSequences
    decoding: torch.Tensor
    sampled_rows: torch.Tensor
    sampled_requests: tuple[int, ...]
    blocks: Sequence[int]

    @cached_property
    def touched(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks that the step writes, each once, [written blocks], and each token's index.

        The second tensor is [tokens], indices into the first.
        """
        places = {block: place for place, block in enumerate(sorted(set(self.blocks)))}
        which = [places[block] for block in self.blocks]
        blocks, indices = _on_device([list(places), which], [], self.slot_blocks.device)
        return blocks, indices

    @property
    def live(self) -> torch.Tensor | None:
        """Rows that are not padding, bool [tokens]; None without padding, as in a packed step.

        Padding has the slot block -1.
        """
        return None

    @cached_property
    def longest(self) -> int:
        """Maximum context of the step."""
        return max(sequence.context for sequence in self.sequences)

    def tiles(self, queries: int) -> torch.Tensor:
        """Tiles of ``queries`` queries of all sequences that are not decoding: int32 [tiles, 2].

        Each row is the sequence and the index of the tile's first query in the chunk.
        """
        if queries not in self._tiles:
            made = [
                (index, first)
                for index, sequence in enumerate(self.sequences)
                for first in range(0, sequence.queries, queries)
                if sequence.queries > 1
            ]
            tiles = torch.tensor(made, dtype=torch.int32).reshape(-1, 2)
            self._tiles[queries] = to_device(tiles, self.input_ids.device)
        return self._tiles[queries]

    @cached_property
    def _tiles(self) -> dict[int, torch.Tensor]:
        return {}

    @cached_property
    def by_size(self) -> tuple[torch.Tensor, list[PackedSequence]]:
        """Indices of sequences to read in place, int32 on the CPU, and the sequences to gather."""
        small: list[int] = []
        large: list[PackedSequence] = []
        for index, sequence in enumerate(self.sequences):
            if (sequence.queries - 1) * sequence.context < SDPA_FROM:
                small.append(index)
            else:
                large.append(sequence)
        return torch.tensor(small, dtype=torch.int32), large


def build_inputs(
    plan: StepPlan,
    tokens: Mapping[int, Sequence[int]],
    tables: Mapping[int, Sequence[int]],
    block_size: int,
    device: torch.device,
) -> StepInputs:
    """Pack the chunks of ``plan``.

    Args:
        tokens: known token ids of each request, prompt first.
        tables: block table of each request.
        block_size: slots of a block.
        device: of the tensors.
    """
    ids: list[int] = []
    positions: list[int] = []
    blocks: list[int] = []
    starts: list[int] = []
    sampled: list[tuple[int, int]] = []
    for chunk in plan.chunks:
        end = chunk.start + chunk.count
        table = tables[chunk.request]
        starts.append(len(ids))
        ids += tokens[chunk.request][chunk.start : end]
        positions += range(chunk.start, end)
        blocks += [table[position // block_size] for position in range(chunk.start, end)]
        if chunk.samples:
            sampled.append((len(ids) - 1, chunk.request))
    starts.append(len(ids))
    contexts = [chunk.start + chunk.count for chunk in plan.chunks]
    used = [-(-context // block_size) for context in contexts]
    width = max(used, default=0)
    padded = array("i")
    for chunk, count in zip(plan.chunks, used, strict=True):
        padded.extend(array("i", tables[chunk.request][:count]))
        padded.frombytes(bytes(4 * (width - count)))
    offsets = [position % block_size for position in positions]
    decoding = [index for index, chunk in enumerate(plan.chunks) if chunk.count == 1]
    input_ids, position_ids, slot_blocks, slot_offsets, sampled_rows, *flat = _on_device(
        [ids, positions, blocks, offsets, [row for row, _ in sampled]],
        [contexts, starts, decoding, padded],
        device,
    )
    own = flat[3].split_with_sizes([n for count in used for n in (count, width - count)])[::2]
    rows = [slice(first, behind) for first, behind in pairwise(starts)]
    return StepInputs(
        input_ids=input_ids[None],
        position_ids=position_ids[None],
        slot_blocks=slot_blocks,
        slot_offsets=slot_offsets,
        sequences=tuple(map(PackedSequence, rows, contexts, own)),
        flat=FlatSequences(flat[3].view(len(used), width), flat[0], flat[1]),
        decoding=flat[2],
        sampled_rows=sampled_rows,
        sampled_requests=tuple(request for _, request in sampled),
        blocks=blocks,
    )


def sequence_inputs(inputs: StepInputs, sequence: PackedSequence) -> StepInputs:
    """One request of a packed step, as a step of its own; nothing is sampled."""
    rows, device = sequence.rows, inputs.input_ids.device
    flat = FlatSequences(
        sequence.table[None],
        torch.tensor([sequence.context], dtype=torch.int32, device=device),
        torch.tensor([0, sequence.queries], dtype=torch.int32, device=device),
    )
    return replace(
        inputs,
        input_ids=inputs.input_ids[:, rows],
        position_ids=inputs.position_ids[:, rows],
        slot_blocks=inputs.slot_blocks[rows],
        slot_offsets=inputs.slot_offsets[rows],
        sequences=(replace(sequence, rows=slice(0, sequence.queries)),),
        flat=flat,
        decoding=inputs.decoding[:0],
        sampled_rows=inputs.sampled_rows[:0],
        sampled_requests=(),
        blocks=inputs.blocks[rows],
    )


def _on_device(
    wide: Sequence[Sequence[int]], narrow: Sequence[Sequence[int]], device: torch.device
) -> list[torch.Tensor]:
    """Copy lists to the device in one transfer: int64 tensors first, then int32.

    Each tensor is aligned to 16 bytes; for other addresses Triton compiles another variant.
    """
    parts = [*(array("q", values) for values in wide), *(array("i", values) for values in narrow)]
    host, sizes = bytearray(), []
    for part in parts:
        size = len(part) * part.itemsize
        sizes += [size, -size % 16]
        host += part.tobytes() + bytes(sizes[-1])
    pieces = to_device(torch.frombuffer(host, dtype=torch.uint8), device).split_with_sizes(sizes)
    types = [torch.long] * len(wide) + [torch.int32] * len(narrow)
    return [piece.view(kind) for piece, kind in zip(pieces[::2], types, strict=True)]


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a small tensor from the CPU; to a GPU asynchronously from pinned memory."""
    pinned = host.pin_memory() if device.type == "cuda" else host
    return pinned.to(device, non_blocking=True)
