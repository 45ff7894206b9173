"""The unit of scheduling: one request, or all beams of a beam search; who is next, who gives way.

    group of width 3      tables                    origin (blocks shared with a sibling)
      beam 7              [ 3 | 5 | 8 ]             none: first member
      beam 9              [ 3 | 5 | 2 ]             7, 2
      beam 4              [ 3 | 1 ]                 7, 1

The beams of a search select their next tokens together, so they decode in the same step. They are
preempted together, as the sequence groups of arXiv 2309.06180, section 4.5. The group records
which blocks its beams share when they are freed, and shares them again on recomputation. Otherwise
a group that fitted into the pool might not fit again.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.core.blocks import BlockPool, blocks_needed
from kvsim.core.draft import next_chunk
from kvsim.core.limits import SchedulingPolicy
from kvsim.core.request import Request, final_tokens
from kvsim.core.step import Chunk


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """Requests that are admitted, scheduled and preempted together.

    Attributes:
        members: never empty while the group waits or runs.
        width: maximum number of members; 1 for a single request.
        rank: (priority, arrival) order under the priority policy.
        origins: for each member preempted by recompute, an earlier sibling and the number of
            leading blocks that they share.
    """

    members: list[Request]
    width: int
    rank: tuple[int, int]
    origins: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def swapped(self) -> bool:
        """Whether the blocks are in host memory."""
        return self.members[0].swapped

    @property
    def is_caught_up(self) -> bool:
        """Whether each member has only its newest token left to compute."""
        return all(member.computed == member.known - 1 for member in self.members)

    def chunks(self, budget: int, allowance: int) -> list[Chunk]:
        """Return the next chunks of a single request or a caught-up group; none if it must wait.

        Args:
            budget: tokens left in the step.
            allowance: tokens of these that one request may use.
        """
        if len(self.members) == 1:
            return [next_chunk(self.members[0], allowance)]
        if len(self.members) > budget:
            return []
        return [next_chunk(member, 1) for member in self.members]

    def known_blocks(self, block_size: int) -> int:
        """Count the blocks for all known tokens if common prefixes are shared again."""
        return sum(
            blocks_needed(member.known, block_size) - self.origins.get(member.id, (0, 0))[1]
            for member in self.members
        )

    def record_origins(self, pool: BlockPool) -> None:
        """Record the full blocks that members share, before their tables are freed.

        A member without blocks keeps its earlier record.
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


def most_blocks(prompt_tokens: int, new_tokens: int, width: int, block_size: int) -> int:
    """Return the blocks of ``width`` beams at their end if they diverge at the first token."""
    final = blocks_needed(final_tokens(prompt_tokens, new_tokens), block_size)
    shared = prompt_tokens // block_size
    return shared + width * (final - shared)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))


def enqueue(
    waiting: list[SequenceGroup],
    group: SequenceGroup,
    policy: SchedulingPolicy,
    preempted: bool = False,
) -> None:
    """Insert ``group`` into ``waiting``, whose first one is admitted next.

    fcfs: first come, first served; priority: smallest priority number, then arrival.
    """
    if policy == "priority":
        bisect.insort(waiting, group, key=lambda each: each.rank)
    elif preempted:
        waiting.insert(0, group)  # it arrived before all that wait
    else:
        waiting.append(group)


def victim(running: Sequence[SequenceGroup], policy: SchedulingPolicy) -> SequenceGroup:
    """Return the group to preempt: the newest, or by priority the last one."""
    if policy == "fcfs":
        return running[-1]
    return max(running, key=lambda group: group.rank)
