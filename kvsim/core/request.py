"""What the scheduler knows of a request: counts of tokens, never a token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.core.blocks import Key

Keys = Callable[[int], "Sequence[Key]"]


def final_tokens(prompt_tokens: int, new_tokens: int) -> int:
    """Slots that a request holds at its end: the last token's K and V are never written."""
    return prompt_tokens + new_tokens - 1


@dataclass(slots=True, eq=False)
class Request:
    """A request and how far it is. Counts are tokens.

    Attributes:
        keys: keys of the request's first so many full blocks, for the prefix cache; None keeps
            the request out of it.
        beams: width of the beam search that the request is or belongs to.
        priority: a smaller number is more urgent (priority policy only).
        arrival: order among equals; the scheduler sets it.
        generated: new tokens so far.
        computed: positions whose K and V are written.
        swapped: its blocks are in host memory.
        published: its first blocks of this number are known to the prefix cache.
        preemptions: how often it lost its blocks.
        reached: most positions that were there when it lost them.
    """

    id: int
    prompt_tokens: int
    max_new_tokens: int
    keys: Keys | None = None
    priority: int = 0
    beams: int = 1
    arrival: int = 0
    generated: int = 0
    computed: int = 0
    swapped: bool = False
    published: int = 0
    preemptions: int = 0
    reached: int = 0

    @property
    def known(self) -> int:
        """Tokens whose ids are known: the prompt and what was generated so far."""
        return self.prompt_tokens + self.generated

    @property
    def final(self) -> int:
        """Slots that it holds at its end, if nothing stops it early."""
        return final_tokens(self.prompt_tokens, self.max_new_tokens)

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service under the priority policy."""
        return self.priority, self.arrival
