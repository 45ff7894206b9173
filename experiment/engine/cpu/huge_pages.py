"""Weights on huge pages: the processor looks fewer addresses up while it reads them.

    pages of 4 KiB     |.|.|.|.|.|.|.|.|   an entry for each: GPT-2's 475 MiB take 121,500
    pages of 2 MiB     |       .       |   at most 237, which a processor keeps at hand

A product with few rows reads each weight once, front to back, and a virtual machine walks two
tables for an address that is not at hand. The pages of memory that is written already are put
together (``MADV_COLLAPSE``, Linux 6.1); what is in them stays, and no more memory is taken.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_COLLAPSE = 25  # MADV_COLLAPSE, which Python's mmap has no name for
# What lies between two allocations that follow each other: the allocator's own few words, and the
# rest of a page.
_GAP = 1 << 16


def page_bytes() -> int | None:
    """Bytes of a huge page; None where the system has none, or its keeper wants none used."""
    if sys.platform != "linux":
        return None
    try:
        if "[never]" in (_SETTINGS / "enabled").read_text(encoding="ascii"):
            return None
        return int((_SETTINGS / "hpage_pmd_size").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def onto_huge_pages(spans: Iterable[tuple[int, int]]) -> int | None:
    """Put memory that is in use onto huge pages, as far as whole ones fit into it.

    Args:
        spans: (begin, end) of each piece, as addresses.

    Returns:
        Bytes that lie on huge pages now; 0 where the system would not; None where it has none.
    """
    page = page_bytes()
    if page is None:
        return None
    library = ctypes.CDLL(None, use_errno=True)
    done = 0
    for begin, end in _joined(spans):
        first, last = -(-begin // page) * page, end // page * page
        if first >= last:
            continue
        span = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        if library.madvise(*span, _COLLAPSE) == 0:
            done += last - first
    return done


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbours as one span: a huge page may hold the end of one and the beginning of the next."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        near = joined and begin - joined[-1][1] <= _GAP
        joined.append((joined.pop()[0] if near else begin, end))
    return joined
