"""Buddy allocator over slots: pieces of power-of-two sizes, split on demand and merged when freed.

    capacity 22   |------ 16 ------|-- 4 --|- 2 -|          roots: the binary digits of 22
    after 3       |4|  4 |    8    |-- 4 --|- 2 -|          a piece of 4 is allocated
                   ^used   free      free    free

A request is rounded up to the next power of two. A piece of size s starts at a multiple of s and
its buddy is at ``start ^ s``; two free buddies are always merged. Roots are ordered largest first,
so a root's buddy never exists and no merge crosses roots.

Source: Knowlton, "A fast storage allocator", CACM 8(10), 1965. The PagedAttention paper (arXiv
2309.06180, section 6.1) uses this allocator for its contiguous baselines.
"""

from __future__ import annotations

from dataclasses import dataclass


class BuddyError(Exception):
    """An invalid operation; the allocator is unchanged."""


class OutOfSlotsError(BuddyError):
    """No free piece is large enough, even if enough slots are free in total."""


@dataclass(frozen=True, slots=True)
class BuddyPiece:
    """Slots ``start`` to ``start + size - 1``, of which ``requested`` were requested."""

    start: int
    size: int
    requested: int


def round_up(slots: int) -> int:
    """Return the smallest power of two >= ``slots``.

    Raises:
        ValueError: ``slots`` is below 1.
    """
    if slots < 1:
        raise ValueError(f"a piece has slots, not {slots}")
    return 1 << (slots - 1).bit_length()


class BuddyAllocator:
    """Allocates pieces of ``capacity`` slots, from the smallest free piece that fits.

    Allocating and freeing take O(log capacity) time and are deterministic.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"{capacity} slots are nothing to allocate from")
        self.capacity = capacity
        self._orders = capacity.bit_length()
        # Starts of free pieces by order; a dict as an ordered set.
        self._free: list[dict[int, None]] = [{} for _ in range(self._orders)]
        self._allocated: dict[int, BuddyPiece] = {}
        self._free_slots = capacity
        start = 0
        for order in reversed(range(self._orders)):
            if capacity >> order & 1:
                self._free[order][start] = None
                start += 1 << order

    @property
    def free_slots(self) -> int:
        """Slots that are not allocated."""
        return self._free_slots

    @property
    def largest_free_piece(self) -> int:
        """Slots of the largest free piece; 0 if there is none."""
        for order in reversed(range(self._orders)):
            if self._free[order]:
                return 1 << order
        return 0

    @property
    def whole_piece(self) -> int:
        """Slots of the largest piece if all free slots were contiguous; 0 if none is free."""
        return 1 << self._free_slots.bit_length() - 1 if self._free_slots else 0

    def fits(self, slots: int) -> bool:
        """Whether ``slots`` can be allocated now."""
        return slots <= self.capacity and round_up(slots) <= self.largest_free_piece

    def ever_fits(self, slots: int) -> bool:
        """Whether ``slots`` could be allocated from an empty allocator."""
        return round_up(slots).bit_length() <= self._orders

    def holes(self, slots: int) -> int:
        """Count the free slots in pieces too small for a request of ``slots``."""
        order = round_up(slots).bit_length() - 1
        return sum(len(starts) << k for k, starts in enumerate(self._free[:order]))

    def allocate(self, slots: int) -> BuddyPiece:
        """Allocate a piece for ``slots``.

        Raises:
            OutOfSlotsError: no free piece is large enough.
            ValueError: ``slots`` is below 1.
        """
        order = round_up(slots).bit_length() - 1
        found = next((k for k in range(order, self._orders) if self._free[k]), None)
        if found is None:
            raise OutOfSlotsError(f"no free piece of {1 << order} slots for {slots}")
        start, _ = self._free[found].popitem()
        # The upper halves stay free.
        for k in range(found - 1, order - 1, -1):
            self._free[k][start + (1 << k)] = None
        piece = self._allocated[start] = BuddyPiece(start, 1 << order, slots)
        self._free_slots -= piece.size
        return piece

    def free(self, start: int) -> BuddyPiece:
        """Free the piece that starts at ``start`` and merge it with free buddies.

        Raises:
            BuddyError: no allocated piece starts there.
        """
        piece = self._allocated.pop(start, None)
        if piece is None:
            raise BuddyError(f"no piece begins at slot {start}")
        self._free_slots += piece.size
        order = piece.size.bit_length() - 1
        while order < self._orders - 1 and (start ^ 1 << order) in self._free[order]:
            del self._free[order][start ^ 1 << order]
            start &= ~(1 << order)
            order += 1
        self._free[order][start] = None
        return piece
