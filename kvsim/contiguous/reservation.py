"""Contiguous reservation: a request reserves all slots that it may need before it starts.

    piece of 2^k slots   [ live ........ | written later ... | never written ... | rounding ]
                           written so far  until it ends       over-reserved       buddy allocator
    free pieces          [ hole: too small for the next waiting request ] [ free ]

The policies are Orca's, as the PagedAttention paper (arXiv 2309.06180, section 6.1) defines its
baselines. The buddy allocator rounds each request up to a power of two:

    max      the maximum length
    pow2     the output length rounded up to a power of two: 25 tokens as 32
    oracle   the true output length

A request of p prompt and n new tokens holds p + n - 1 slots at its end: ``oracle`` reserves these,
``pow2`` the same for its rounded output length.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvsim.contiguous.buddy import BuddyAllocator, BuddyPiece, round_up
from kvsim.core.request import final_tokens

ReservationPolicy = Literal["max", "pow2", "oracle"]
POLICIES: tuple[ReservationPolicy, ...] = ("max", "pow2", "oracle")


class ReservationError(Exception):
    """A request that cannot be served."""


def reserved_slots(
    policy: ReservationPolicy, prompt_tokens: int, new_tokens: int, max_length: int
) -> int:
    """Return the slots that a request reserves; ``max`` ignores ``new_tokens``.

    Raises:
        ReservationError: the request is longer than ``max_length``, or a length is below 1.
    """
    if prompt_tokens < 1 or new_tokens < 1:
        raise ReservationError(f"{prompt_tokens} prompt and {new_tokens} new tokens")
    final = final_tokens(prompt_tokens, new_tokens)
    if final > max_length:
        raise ReservationError(f"{final} slots needed, the maximum length is {max_length}")
    if policy == "max":
        return max_length
    if policy == "pow2":
        return min(final_tokens(prompt_tokens, round_up(new_tokens)), max_length)
    return final


class ReservationCounts(NamedTuple):
    """Slots of the pool in each state at one moment; they sum to the pool.

    Attributes:
        live: written by running requests.
        written_later: reserved and written before the request ends.
        never_written: reserved beyond the request's end (internal fragmentation).
        rounding: added by the allocator to reach a power of two.
        hole: free, in pieces too small for the next waiting request (external fragmentation).
        free: all other free slots.
    """

    live: int
    written_later: int
    never_written: int
    rounding: int
    hole: int
    free: int


class ReservationPool:
    """A pool of slots from which requests reserve, and the sums of slot states.

    Admission and release cost as much as the buddy allocator, counting O(1).

    Args:
        capacity: slots of the pool.
        policy: how many slots a request reserves.
        max_length: slots of the longest request.
    """

    def __init__(self, capacity: int, policy: ReservationPolicy, max_length: int) -> None:
        self.policy = policy
        self.max_length = max_length
        self.buddy = BuddyAllocator(capacity)
        self._reservations: dict[int, tuple[BuddyPiece, int]] = {}  # and final slots
        self._final = self._requested = self._allocated = 0

    def __len__(self) -> int:
        return len(self._reservations)

    def requested_slots(self, prompt_tokens: int, new_tokens: int) -> int:
        """Return the slots that a request of these lengths reserves.

        Raises:
            ReservationError: it exceeds the maximum length or the empty pool.
        """
        slots = reserved_slots(self.policy, prompt_tokens, new_tokens, self.max_length)
        if not self.buddy.ever_fits(slots):
            raise ReservationError(f"no pool of {self.buddy.capacity} slots has {slots} in a row")
        return slots

    def fits(self, prompt_tokens: int, new_tokens: int) -> bool:
        """Whether a request of these lengths can start now.

        Raises:
            ReservationError: see :meth:`requested_slots`.
        """
        return self.buddy.fits(self.requested_slots(prompt_tokens, new_tokens))

    def admit(self, request: int, prompt_tokens: int, new_tokens: int) -> BuddyPiece:
        """Reserve a piece for ``request``.

        Raises:
            ReservationError: see :meth:`requested_slots`, or the request already has a piece.
            kvsim.contiguous.buddy.OutOfSlotsError: no free piece is large enough.
        """
        if request in self._reservations:
            raise ReservationError(f"request {request} holds a piece already")
        piece = self.buddy.allocate(self.requested_slots(prompt_tokens, new_tokens))
        final = final_tokens(prompt_tokens, new_tokens)
        self._reservations[request] = piece, final
        self._final += final
        self._requested += piece.requested
        self._allocated += piece.size
        return piece

    def release(self, request: int) -> BuddyPiece:
        """End a request, early or not, and free its piece.

        Raises:
            ReservationError: it has no piece.
        """
        if request not in self._reservations:
            raise ReservationError(f"request {request} holds nothing")
        piece, final = self._reservations.pop(request)
        self._final -= final
        self._requested -= piece.requested
        self._allocated -= piece.size
        return self.buddy.free(piece.start)

    def counts(self, live: int, next_slots: int | None = None) -> ReservationCounts:
        """Count the slots in each state.

        Args:
            live: slots that running requests have written.
            next_slots: slots that the next waiting request reserves; None: no holes.
        """
        holes = self.buddy.holes(next_slots) if next_slots else 0
        return ReservationCounts(
            live=live,
            written_later=self._final - live,
            never_written=self._requested - self._final,
            rounding=self._allocated - self._requested,
            hole=holes,
            free=self.buddy.free_slots - holes,
        )
