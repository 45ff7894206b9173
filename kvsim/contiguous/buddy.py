"""A buddy allocator over slots: pieces are powers of two, halved on demand and joined again.

    capacity 22   |------ 16 ------|-- 4 --|- 2 -|          roots: the binary digits of 22
    after 3       |4|  4 |    8    |-- 4 --|- 2 -|          a piece of 4 is handed out
                   ^held   free      free    free

A request is rounded up to the next power of two. A piece of size s begins at a multiple of s and
its buddy is at ``start ^ s``; two free buddies are always one free piece. The roots stand largest
first, so the buddy of a root would be of a size that does not exist behind it: nothing joins
across roots, without a check for it.

After Knowlton, "A fast storage allocator", CACM 8(10), 1965; the PagedAttention paper (arXiv
2309.06180, section 6.1) gives its contiguous baselines this allocator.
"""

from __future__ import annotations

from dataclasses import dataclass


class BuddyError(Exception):
    """An operation that must not happen; the allocator is as it was before."""


class OutOfSlotsError(BuddyError):
    """No free piece is large enough, though there may be enough free slots in all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Slots ``start`` to ``start + size - 1``, of which ``asked`` were asked for."""

    start: int
    size: int
    asked: int

    @property
    def rounding(self) -> int:
        """Slots that rounding up added."""
        return self.size - self.asked


def round_up(slots: int) -> int:
    """The smallest power of two that is not below ``slots``.

    Raises:
        ValueError: fewer than one slot.
    """
    if slots < 1:
        raise ValueError(f"a piece has slots, not {slots}")
    return 1 << (slots - 1).bit_length()


class BuddyAllocator:
    """Hands out pieces of ``capacity`` slots, lowest order that fits first.

    Allocating and freeing take time in proportion to the number of orders, the logarithm of the
    capacity. The same operations give the same places.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"{capacity} slots are nothing to allocate from")
        self.capacity = capacity
        self._orders = capacity.bit_length()
        # Starts of free pieces by order; a dict is a set that remembers its order.
        self._free: list[dict[int, None]] = [{} for _ in range(self._orders)]
        self._held: dict[int, Piece] = {}
        self._free_slots = capacity
        start = 0
        for order in reversed(range(self._orders)):
            if capacity >> order & 1:
                self._free[order][start] = None
                start += 1 << order

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return self._free_slots

    @property
    def held(self) -> tuple[Piece, ...]:
        """Pieces handed out."""
        return tuple(self._held.values())

    @property
    def largest_free_piece(self) -> int:
        """Slots of the largest piece that can be handed out; 0 when there is none."""
        for order in reversed(range(self._orders)):
            if self._free[order]:
                return 1 << order
        return 0

    @property
    def whole_piece(self) -> int:
        """Slots of the largest piece that as many free slots could be; 0 when none is free."""
        return 1 << self._free_slots.bit_length() - 1 if self._free_slots else 0

    def fits(self, slots: int) -> bool:
        """Whether ``slots`` can be handed out now."""
        return slots <= self.capacity and round_up(slots) <= self.largest_free_piece

    def ever_fits(self, slots: int) -> bool:
        """Whether ``slots`` could be handed out of an empty allocator."""
        return round_up(slots).bit_length() <= self._orders

    def holes(self, slots: int) -> int:
        """Free slots in pieces too small for a request of ``slots``."""
        order = round_up(slots).bit_length() - 1
        return sum(len(starts) << k for k, starts in enumerate(self._free[:order]))

    def allocate(self, slots: int) -> Piece:
        """Hand out a piece that holds ``slots``.

        Raises:
            OutOfSlotsError: no free piece is large enough.
            ValueError: fewer than one slot.
        """
        order = round_up(slots).bit_length() - 1
        found = next((k for k in range(order, self._orders) if self._free[k]), None)
        if found is None:
            raise OutOfSlotsError(f"no free piece of {1 << order} slots for {slots}")
        start, _ = self._free[found].popitem()
        # The upper halves stay free.
        for k in range(found - 1, order - 1, -1):
            self._free[k][start + (1 << k)] = None
        piece = self._held[start] = Piece(start, 1 << order, slots)
        self._free_slots -= piece.size
        return piece

    def free(self, start: int) -> Piece:
        """Take back the piece that begins at ``start`` and join it with free buddies.

        Raises:
            BuddyError: no piece that is handed out begins there.
        """
        piece = self._held.pop(start, None)
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

    def check_integrity(self) -> None:
        """Compare all records with each other; visits every piece.

        Raises:
            BuddyError: slots are lost or held twice, a piece is misplaced, or two free buddies
                stand apart.
        """
        free = [(start, 1 << k) for k, starts in enumerate(self._free) for start in starts]
        held = [(piece.start, piece.size) for piece in self._held.values()]
        end = 0
        for start, size in sorted(free + held):
            if start != end:
                raise BuddyError(f"slots between {end} and {start} are lost or held twice")
            if start % size:
                raise BuddyError(f"a piece of {size} slots begins at {start}")
            end = start + size
        if end != self.capacity:
            raise BuddyError(f"the pieces end at {end} of {self.capacity} slots")
        if sum(size for _, size in free) != self._free_slots:
            raise BuddyError("the count of free slots is wrong")
        apart = set(free)
        for start, size in free:
            if (start ^ size, size) in apart:
                raise BuddyError(f"free buddies of {size} slots stand apart at {start}")
        if any(not piece.size // 2 < piece.asked <= piece.size for piece in self._held.values()):
            raise BuddyError("a piece is not of the size that was asked for")
