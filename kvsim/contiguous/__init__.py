"""Contiguous allocation: slabs, reservations, the buddy allocator."""
