"""Plays an engine without a model: what each slot holds is a digest of all tokens up to it.

    tokens   a  b  c  d            slot of position 2 holds digest(a b c)

A slot that is read and holds anything else was shared, copied, swapped, evicted or overwritten
wrongly: keys and values of a position depend on exactly these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.core.step import BlockOp, Chunk, OpKind, StepPlan

Slots = list[int | None]


def digest(tokens: Sequence[int], position: int) -> int:
    """What the slot of ``position`` has to hold."""
    return hash((1, *tokens[: position + 1]))


class ShadowMemory:
    """Device and host blocks, carried through plans by the rules of the engine's pool."""

    def __init__(self, blocks: int, host_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.device = [self._empty() for _ in range(blocks)]
        self.host = [self._empty() for _ in range(host_blocks)]
        self.tables: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan, tokens: dict[int, list[int]]) -> None:
        """Carry out a plan; every position that a chunk attends to must hold what it should."""
        for op in plan.ops:
            self._apply(op)
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.start + chunk.count):
                block, offset = self._slot(chunk, position)
                self.device[block][offset] = digest(tokens[chunk.request], position)
        for chunk in plan.chunks:
            for position in range(chunk.start + chunk.count):
                block, offset = self._slot(chunk, position)
                found = self.device[block][offset]
                assert found == digest(tokens[chunk.request], position), (chunk, position)

    @property
    def written_slots(self) -> int:
        """Slots of the device that hold something."""
        return sum(slot is not None for block in self.device for slot in block)

    def _slot(self, chunk: Chunk, position: int) -> tuple[int, int]:
        logical, offset = divmod(position, self.block_size)
        return self.tables[chunk.request][logical], offset

    def _empty(self) -> Slots:
        return [None] * self.block_size

    def _apply(self, op: BlockOp) -> None:
        if op.kind is OpKind.EVICT:
            for block in op.blocks:
                self.device[block] = self._empty()
            return
        assert op.request is not None
        table = self.tables.setdefault(op.request, [])
        if op.kind is OpKind.COPY:
            for old, new in zip(op.sources, op.blocks, strict=True):
                self.device[new] = list(self.device[old])
                table[table.index(old)] = new
        elif op.kind in (OpKind.FREE, OpKind.SWAP_OUT):
            self._take_away(op)
        else:
            if op.kind is OpKind.SWAP_IN:
                for block, host in zip(op.blocks, op.sources, strict=True):
                    self.device[block] = list(self.host[host])
            table.extend(op.blocks)

    def _take_away(self, op: BlockOp) -> None:
        assert op.request is not None
        if op.kind is OpKind.SWAP_OUT:
            for block, host in zip(op.blocks, op.sources, strict=True):
                self.host[host] = list(self.device[block])
        del self.tables[op.request]
        owned = {block for table in self.tables.values() for block in table}
        for block in set(op.blocks) - owned - set(op.cached):
            self.device[block] = self._empty()
