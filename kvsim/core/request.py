"""A request as the scheduler sees it: token counts, no tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.core.blocks import Key

Keys = Callable[[int], "Sequence[Key]"]


def final_tokens(prompt_tokens: int, new_tokens: int) -> int:
    """Return the slots of a finished request: K and V of its last token are never written."""
    return prompt_tokens + new_tokens - 1


@dataclass(slots=True, eq=False)
class Request:
    """A request and its progress. Counts are in tokens.

    Attributes:
        keys: returns the keys of the request's first n full blocks; None: no prefix caching.
        beams: width of the beam search that the request belongs to.
        priority: a smaller number is more urgent (priority policy only).
        arrival: order among equal priorities; set by the scheduler.
        generated: new tokens so far.
        computed: positions whose K and V are written.
        is_prefill_chunk: its last chunk left known tokens to compute.
        swapped: its blocks are in host memory.
        published: number of its leading blocks in the prefix cache.
        preemptions: number of preemptions.
        reached: largest ``computed`` at a preemption.
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
    is_prefill_chunk: bool = False
    swapped: bool = False
    published: int = 0
    preemptions: int = 0
    reached: int = 0

    @property
    def known(self) -> int:
        """Tokens with known ids: the prompt and the generated ones."""
        return self.prompt_tokens + self.generated

    @property
    def final(self) -> int:
        """Slots at its end if it is not stopped early."""
        return final_tokens(self.prompt_tokens, self.max_new_tokens)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key of the priority policy."""
        return self.priority, self.arrival
