"""What is scheduled as one: a request alone, or all beams of a beam search.

    group of width 3      tables                    origin (blocks in common with a sibling)
      beam 7              [ 3 | 5 | 8 ]             none: it comes first
      beam 9              [ 3 | 5 | 2 ]             7, 2
      beam 4              [ 3 | 1 ]                 7, 1

The beams of a search choose their next tokens together, so each needs its newest token computed
in the same step: they decode together or not at all, and they are preempted together, all or
nothing, as sequence groups are in the PagedAttention paper (arXiv 2309.06180, section 4.5).
What beams have in common is remembered when their blocks are freed, and shared again when they
are computed anew: without that, a group that fits into the pool might never fit again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.draft import next_chunk
from kvsim.core.request import Request
from kvsim.core.step import Chunk


@dataclass(slots=True, eq=False)
class Group:
    """Requests that run, wait and give way together.

    Attributes:
        members: never empty while the group waits or runs.
        width: most members that it may have; 1 for a request alone.
        rank: order of service under the priority policy.
        origins: for each member that was preempted by recompute, a sibling before it and how
            many of the sibling's first blocks it begins with.
    """

    members: list[Request]
    width: int
    rank: tuple[int, int]
    origins: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def swapped(self) -> bool:
        """Whether its blocks are in host memory."""
        return self.members[0].swapped

    @property
    def level(self) -> bool:
        """Whether each member has but its newest token to compute."""
        return all(member.computed == member.known - 1 for member in self.members)

    def chunks(self, budget: int, allowance: int) -> list[Chunk]:
        """What a request alone, or a level group, computes next; none if it is to wait.

        Args:
            budget: tokens that are left of the step.
            allowance: of those, what one request may have.
        """
        if len(self.members) == 1:
            return [next_chunk(self.members[0], allowance)]
        if len(self.members) > budget:
            return []
        return [next_chunk(member, 1) for member in self.members]

    def known_blocks(self, block_size: int) -> int:
        """Blocks that hold all tokens known so far, if what is in common is shared again."""
        return sum(
            blocks_needed(member.known, block_size) - self.origins.get(member.id, (0, 0))[1]
            for member in self.members
        )

    def remember_origins(self, pool: BlockPool) -> None:
        """Note which full blocks members have in common, before their tables go.

        A member that holds no blocks yet keeps what was noted before.
        """
        size = pool.block_size
        before, self.origins = self.origins, {}
        for index, member in enumerate(self.members[1:], 1):
            table = pool.table(member.id)
            if not table:
                self.origins[member.id] = before[member.id]
                continue
            best = (self.members[0].id, 0)
            for sibling in self.members[:index]:
                common = _common(table, pool.table(sibling.id))
                common = min(common, member.computed // size, sibling.computed // size)
                if common > best[1]:
                    best = (sibling.id, common)
            self.origins[member.id] = best


def most_blocks(request: Request, width: int, block_size: int) -> int:
    """Blocks of ``width`` beams of ``request`` at their end, if they part at the first token."""
    shared = request.prompt_tokens // block_size
    return shared + width * (blocks_needed(request.final, block_size) - shared)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Blocks with which both tables begin."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
