"""Prefill attention through block tables on a GPU: causal, with earlier positions, ragged.

    chunk of 5 queries after 6 positions, tiles of 4 queries        context 11
    query 0  ▓▓▓▓▓▓▓ . . . .   ┐
          1  ▓▓▓▓▓▓▓▓ . . .    │ tile (sequence, first query 0): keys 0 to 9
          2  ▓▓▓▓▓▓▓▓▓ . .     │
          3  ▓▓▓▓▓▓▓▓▓▓ .      ┘
          4  ▓▓▓▓▓▓▓▓▓▓▓       ─ tile (sequence, first query 4): keys 0 to 10

    rows of a tile   query 0: heads of the group | query 1: heads of the group | ...

The host lists the tiles once per step, for all layers. Nothing is padded to the longest chunk: a
short chunk has fewer tiles.
"""

from __future__ import annotations

import torch
import triton.language as tl

from experiment.engine.cuda.triton_tile import (
    LOG2_E,
    PLAIN,
    Layer,
    attend_tile,
    blocks_of,
    from_columns,
    kernel,
    operands,
    padded,
    stages_of,
    tile_of,
    tile_of_positions,
    to_columns,
)
from experiment.engine.step_inputs import FlatSequences

# Rows of a tile, queries times heads of the group: in float32 or up to 64 dimensions, and in half
# precision over more. Then limits for their queries and for a tile of keys; an 8-bit cache,
# converted in registers, gets half as many keys and one buffer. For compute capability 8.0 to 9.0
# no register spills in half precision, and a program fits the 99 KiB of shared memory of the
# smallest GPUs.
_ROWS = (64, 128)
_QUERY_BYTES = 32 << 10
_TILE_BYTES = 8 << 10


def rows_of(dim: int, element_bytes: int) -> tuple[int, int]:
    """Rows of a tile, and the warps that share them.

    In half precision a warp has 16 rows, and there are as many rows as dimensions, up to 128. With
    fewer rows Triton assigns each to several warps, which all compute its scores.
    """
    half = element_bytes == 2
    rows = _ROWS[half and padded(dim) > 64]
    fitting = min(rows, _QUERY_BYTES // (padded(dim) * element_bytes))
    return fitting, 4 if half and padded(dim) <= 64 else 8


def queries_of(group: int, dim: int, element_bytes: int) -> int:
    """Queries in a tile, for ``group`` query heads per KV head."""
    return max(1, rows_of(dim, element_bytes)[0] // group)


def prefill(
    q: torch.Tensor, kv: Layer, flat: FlatSequences, tiles: torch.Tensor, queries: int,
    scale: float, out: torch.Tensor, tile: int = 0,
) -> None:  # fmt: skip
    """Compute attention of the queries of all ``tiles`` into their rows of ``out``.

    Args:
        q: [tokens, heads, head_dim], contiguous.
        kv: one layer of the pool.
        flat: all sequences of the step.
        tiles: (sequence, first query of the chunk), int32 [n, 2].
        queries: number of queries in a tile.
        scale: multiplies the scores.
        out: [tokens, heads, head_dim], contiguous.
        tile: positions of a tile; 0: by head size and dtype.
    """
    heads, dim = q.shape[1], q.shape[2]
    _, kv_heads, size, _ = kv.keys.shape
    group = heads // kv_heads
    rows = padded(queries * group)
    tile = tile or tile_of(dim, q.element_size(), _TILE_BYTES >> (kv.form != PLAIN))
    _prefill[(tiles.shape[0], kv_heads)](
        q, kv.keys, kv.values, kv.key_scales, kv.value_scales,
        flat.tables, flat.contexts, flat.starts, tiles, out,
        scale * LOG2_E, flat.tables.shape[1],
        kv_heads, group, size, dim, padded(dim), rows, queries,
        tile, kv.form, operands(q.dtype),
        num_warps=rows_of(dim, q.element_size())[1],
        num_stages=2 if kv.form != PLAIN else stages_of(tile, dim, kv.keys.element_size()),
    )  # fmt: skip


@kernel("width")
def _prefill(
    q, keys, values, key_scales, value_scales, tables, contexts, starts, tiles, out,
    scale, width,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, TILE: tl.constexpr,
    FORMAT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One tile of queries, for the query heads of one KV head."""
    index, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(tiles + 2 * index)
    first_query = tl.load(tiles + 2 * index + 1)
    context = tl.load(contexts + sequence)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    query = first_query + rows // GROUP
    there = (rows < QUERIES * GROUP) & (query < count)
    last_visible = context - count + query  # a query sees the positions up to its own
    mask = there[:, None] & (dims < DIM)[None, :]
    token = (start + query).to(tl.int64)
    place = ((token * KV_HEADS + head) * GROUP + rows % GROUP)[:, None] * DIM + dims[None, :]
    x = tl.load(q + place, mask=mask, other=0.0).to(TYPE)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS, TILE], tl.float32)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)
    table = tables + sequence.to(tl.int64) * width
    end = tl.minimum(context, context - count + first_query + QUERIES)
    x = to_columns(x, FORMAT)
    half = tl.sum(x.to(tl.float32), 1)[:, None] / 2
    blocks = blocks_of(table, tile_of_positions(0, end, TILE), SIZE)
    for first in range(0, end, TILE):
        positions = tile_of_positions(first, end, TILE)
        blocks_ahead = blocks_of(table, tile_of_positions(first + TILE, end, TILE), SIZE)
        causal = (first + tl.arange(0, TILE))[None, :] <= last_visible[:, None]
        best, total, acc = attend_tile(
            x, half, keys, values, key_scales, value_scales, blocks, positions, head,
            causal, scale, best, total, acc, KV_HEADS, SIZE, DIM, DIM_PAD, FORMAT, TYPE, True,
        )  # fmt: skip
        blocks = blocks_ahead
    acc = from_columns(acc, FORMAT)
    tl.store(out + place, acc / tl.sum(total, 1)[:, None], mask=mask)
