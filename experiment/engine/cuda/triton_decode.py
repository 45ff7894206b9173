"""Decode attention through block tables on a GPU: one query per request, split contexts.

    context of 700, splits of 256        one program for each request, KV head and split
    ┌──────── 0 ────────┬──────── 1 ────────┬───── 2 ─────┐
    │ tile tile tile .. │ tile tile tile .. │ tile tile . │      each: its own maximum, sum
    └─────────┬─────────┴─────────┬─────────┴──────┬──────┘            and weighted values
       partial, log-sum    partial, log-sum  partial, log-sum
              └───────────────────┼────────────────┘
                               combine: the partials, weighted by exp(log-sum - largest)

The query heads of a KV head are the rows of one program, which reads a block once for all of them
(grouped-query attention). Splitting a context is flash-decoding (Dao et al., 2023): few long
requests still fill the GPU. A split has always ``SPLIT`` positions, so that results do not depend
on the batch; it costs a partial row per head and split.
"""

from __future__ import annotations

import torch
import triton.language as tl

from experiment.engine.cuda.triton_tile import (
    LOG2_E,
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

SPLIT = 256
# Bytes of keys in a tile: for a matrix product, and for a single row in float32.
_TILE_BYTES = 8 << 10
_ROW_TILE_BYTES = 4 << 10
# Partials that the combining kernel loads at once.
_CHUNK = tl.constexpr(16)


def rows_of(group: int, element_bytes: int) -> int:
    """Rows of a program for ``group`` query heads per KV head.

    In half precision a single head is padded too: tensor cores multiply 16 rows in fewer
    instructions. They do not support float32, where a single row is a sum of products.
    """
    return 1 if group == 1 and element_bytes > 2 else padded(group)


def decode(
    q: torch.Tensor, kv: Layer, flat: FlatSequences, chosen: torch.Tensor, longest: int,
    scale: float, out: torch.Tensor, split: int = SPLIT, tile: int = 0,
) -> None:  # fmt: skip
    """Compute attention of the single query of each chosen sequence into its row of ``out``.

    Args:
        q: [tokens, heads, head_dim], contiguous.
        kv: one layer of the pool.
        flat: all sequences of the step; a context of 0 gives zeros.
        chosen: indices of sequences, int32 [n].
        longest: maximum context.
        scale: multiplies the scores.
        out: [tokens, heads, head_dim], contiguous.
        split: positions of a split, a multiple of ``tile``.
        tile: positions of a tile; 0: by head size and dtype.
    """
    count, heads, dim = chosen.numel(), q.shape[1], q.shape[2]
    _, kv_heads, size, _ = kv.keys.shape
    group = heads // kv_heads
    rows = rows_of(group, q.element_size())
    tile_bytes = _ROW_TILE_BYTES if rows == 1 else _TILE_BYTES
    tile = tile or tile_of(dim, q.element_size(), tile_bytes)
    splits = max(1, -(-longest // split))
    alone = splits == 1
    # Float32: partials are rounded once, at the end.
    parts = out if alone else q.new_empty((count, heads, splits, dim), dtype=torch.float32)
    sums = parts if alone else q.new_empty((count, heads, splits), dtype=torch.float32)
    _decode[(count, kv_heads, splits)](
        q, kv.keys, kv.values, kv.key_scales, kv.value_scales,
        flat.tables, flat.contexts, flat.starts, chosen, parts, sums,
        scale * LOG2_E, flat.tables.shape[1], splits,
        kv_heads, group, size, dim, padded(dim), rows, tile,
        split, alone, kv.form, operands(q.dtype),
        num_warps=4, num_stages=stages_of(tile, dim, kv.keys.element_size()),
    )  # fmt: skip
    if not alone:
        _combine[(count, heads)](
            parts, sums, flat.contexts, flat.starts, chosen, out,
            splits, heads, dim, padded(dim), split, num_warps=2,
        )  # fmt: skip


@kernel("width", "splits")
def _decode(
    q, keys, values, key_scales, value_scales, tables, contexts, starts, chosen, out, sums,
    scale, width, splits,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, DIM: tl.constexpr,
    DIM_PAD: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    ALONE: tl.constexpr, FORMAT: tl.constexpr, TYPE: tl.constexpr,
):  # fmt: skip
    """One split of one request, for the query heads of one KV head."""
    index, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence = tl.load(chosen + index)
    context = tl.load(contexts + sequence)
    begin = part * SPLIT
    if (begin >= context) & (part > 0):
        return  # not read by the combining kernel
    end = tl.minimum(begin + SPLIT, context)
    row = tl.load(starts + sequence).to(tl.int64)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PAD)
    mask = (rows < GROUP)[:, None] & (dims < DIM)[None, :]
    first_head = row * KV_HEADS * GROUP + head * GROUP
    query = tl.load(
        q + (first_head + rows)[:, None] * DIM + dims[None, :], mask=mask, other=0.0
    ).to(TYPE)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS, TILE], tl.float32)
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)
    table = tables + sequence.to(tl.int64) * width
    query = to_columns(query, FORMAT)
    half = tl.sum(query.to(tl.float32), 1)[:, None] / 2
    blocks = blocks_of(table, tile_of_positions(begin, end, TILE), SIZE)
    for first in range(begin, end, TILE):
        positions = tile_of_positions(first, end, TILE)
        blocks_ahead = blocks_of(table, tile_of_positions(first + TILE, end, TILE), SIZE)
        visible = (first + tl.arange(0, TILE) < end)[None, :]
        best, total, acc = attend_tile(
            query, half, keys, values, key_scales, value_scales, blocks, positions, head,
            visible, scale, best, total, acc, KV_HEADS, SIZE, DIM, DIM_PAD, FORMAT, TYPE, ROWS > 1,
        )  # fmt: skip
        blocks = blocks_ahead
    total = tl.sum(total, 1)
    empty = total == 0.0  # a context of 0
    total = tl.where(empty, 1.0, total)
    if ALONE:
        place = first_head + rows
    else:
        place = ((index.to(tl.int64) * KV_HEADS + head) * GROUP + rows) * splits + part
        best = tl.where(empty, 0.0, best)
        tl.store(sums + place, best + tl.log2(total), mask=rows < GROUP)
    acc = from_columns(acc, FORMAT) / total[:, None]
    tl.store(out + place[:, None] * DIM + dims[None, :], acc, mask=mask)


@kernel("splits")
def _combine(
    parts, sums, contexts, starts, chosen, out, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one request and query head."""
    index, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(chosen + index)
    used = tl.maximum(tl.cdiv(tl.load(contexts + sequence), SPLIT), 1)
    dims = tl.arange(0, DIM_PAD)
    from_ = (index.to(tl.int64) * HEADS + head) * splits
    best = float("-inf")
    total = 0.0
    acc = tl.zeros([DIM_PAD], tl.float32)
    for first in range(0, used, _CHUNK):
        split = first + tl.arange(0, _CHUNK)
        there = split < used
        share = tl.load(sums + from_ + split, mask=there, other=float("-inf"))
        mask = there[:, None] & (dims < DIM)[None, :]
        x = tl.load(parts + (from_ + split)[:, None] * DIM + dims[None, :], mask=mask, other=0.0)
        new = tl.maximum(best, tl.max(share, 0))
        shrink = tl.exp2(best - new)
        weights = tl.exp2(share - new)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * x, 0)
        best = new
    row = tl.load(starts + sequence).to(tl.int64) * HEADS + head
    tl.store(out + row * DIM + dims, acc / total, mask=dims < DIM)
