"""Memory of one request against its length, by how layers of different kinds are allocated.

    full     every layer as if it kept all tokens, in blocks
    groups   vLLM's groups: equal pages, padded layers, raised blocks and further states included
    exact    a pool for each kind with pages of its own size, as Jenga (arXiv 2503.18292) proposes
    static   Transformers' StaticCache of just that length: windows and chunks keep no more

Windows and chunks hold what the next token attends to, as while decoding: less than what vLLM sets
aside for tokens in flight (:meth:`kvsim.sizing.layout.Layout.request_blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvsim.sizing.layout import LayerCache, Layout

Lengths = NDArray[np.int64]
WAYS = ("full", "groups", "exact", "static")


def request_memory(
    caches: Sequence[LayerCache], layout: Layout, lengths: Lengths, block_size: int
) -> Mapping[str, Lengths]:
    """Return the bytes of a request on one rank, for each of :data:`WAYS` and length.

    Args:
        caches: of the layers, as laid out.
        lengths: tokens, [n].
        block_size: tokens of a block for kinds that have their own.
    """
    total = dict.fromkeys(WAYS, np.zeros(len(lengths), np.int64))
    for cache in caches:
        if cache.kind == "state":
            state = np.full(len(lengths), cache.token_bytes, np.int64)
            kept = dict.fromkeys(("full", "exact", "static"), state)
        else:
            span, size = cache.span, cache.token_bytes
            slots = held_blocks(lengths, block_size, cache) * block_size
            kept = {
                "full": size * block_size * -(-lengths // block_size),
                "exact": size * slots,
                "static": size * (np.minimum(lengths, span) if span else lengths),
            }
        for way, bytes_kept in kept.items():
            total[way] = total[way] + bytes_kept
    total["groups"] = layout.block_bytes * group_blocks(layout, lengths)
    return total


def group_blocks(layout: Layout, lengths: Lengths) -> Lengths:
    """Return the blocks of a request of each length, over all groups."""
    total = np.zeros(len(lengths), np.int64)
    for group in layout.groups:
        cache = group.cache[0]
        total += held_blocks(lengths, cache.block_size, cache)
    return total


def held_blocks(lengths: Lengths, block_size: int, cache: LayerCache) -> Lengths:
    """Return the blocks of one layer in which a request of each length still needs a token."""
    if cache.kind == "state":
        return np.full(len(lengths), cache.states, np.int64)
    return -(-lengths // block_size) - _passed(lengths, cache) // block_size


def live_bytes(caches: Sequence[LayerCache], lengths: Lengths) -> Lengths:
    """Return the bytes that hold something a request of each length still needs, on one rank."""
    total = np.zeros(len(lengths), np.int64)
    for cache in caches:
        kept = 1 if cache.kind == "state" else lengths - _passed(lengths, cache)
        total += cache.token_bytes * kept
    return total


def _passed(lengths: Lengths, cache: LayerCache) -> Lengths:
    """Tokens that the next one no longer attends to."""
    if cache.kind == "window":
        return np.maximum(lengths - cache.span, 0)
    if cache.kind == "chunked":
        return np.maximum(lengths - 1, 0) // cache.span * cache.span
    return np.zeros(len(lengths), np.int64)
