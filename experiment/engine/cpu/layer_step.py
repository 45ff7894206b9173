"""A layer's keys and values written and its attention computed in one call of compiled code.

    for each task (a part of the KV heads of one sequence):
        new rows of these heads ──► their slots
        attention of these heads over all slots of the sequence

Most of what a small step costs beside its matrix products is getting from one operation to the
next. What all layers of a step have in common is put together once, and what was just written is
read while it is still at hand. It is right only where no sequence reads what another one writes in
the same step; :func:`apart` says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from experiment.engine.cpu import torch_threads
from experiment.engine.cpu.attention_kernel import Share, _attend, rows_of, share
from experiment.engine.cpu.compiled import F32, I32, Floats, Ints, jit, job_body, run_job
from experiment.engine.cpu.torch_threads import (
    BROKEN,
    cube,
    entry,
    layer,
    matrix,
    next_piece,
    vector,
)
from experiment.engine.cpu.write import flat, span
from experiment.engine.step_inputs import StepInputs

_L = np.int64
_SEQUENCES = 26  # where they begin in a job


@jit(
    "void(float32[::1], int64, int64, float32[:,:,:,::1], int32[::1], int32[::1], int64[::1],"
    " int64[::1], int64, int64, int64)",
    {"contract"},
)
def _put(
    rows: Floats, token_stride: int, head_stride: int, slots: Floats, starts: Ints, chosen: Ints,
    blocks: Ints, offsets: Ints, heads_at_once: int, begin: int, end: int,
) -> None:  # fmt: skip
    """Write the rows of tasks [begin, end) into one half of a layer."""
    kv_heads = slots.shape[1]
    parts = -(-kv_heads // heads_at_once)
    for task in range(begin, end):
        s, first = chosen[task // parts], (task % parts) * heads_at_once
        for token in range(starts[s], starts[s + 1]):
            for head in range(first, min(first + heads_at_once, kv_heads)):
                start = token * token_stride + head * head_stride
                for c in range(slots.shape[3]):
                    slots[blocks[token], head, offsets[token], c] = rows[start + c]


@job_body
def _body(address: Any) -> None:
    """Both for every piece that this thread gets of a job of :func:`write_and_attend`."""
    job = numba.carray(address, (torch_threads.LONGEST,))
    per_part = job[3]
    q, keys, values = matrix(job, 8, F32), vector(job, 11, F32), vector(job, 13, F32)
    kv, out = layer(job, 15, F32), cube(job, 21, F32)
    at = job[25]
    tables, contexts, starts = (
        matrix(job, at, I32),
        vector(job, at + 3, I32),
        vector(job, at + 5, I32),
    )
    chosen, scale = vector(job, at + 7, I32), vector(job, at + 9, F32)[0]
    blocks, offsets = vector(job, at + 11, _L), vector(job, at + 13, _L)
    try:
        begin, end = next_piece(job)
        while begin >= 0:
            _put(keys, job[4], job[5], kv[0], starts, chosen, blocks, offsets, per_part, begin, end)
            _put(
                values, job[6], job[7], kv[1], starts, chosen, blocks, offsets, per_part, begin, end
            )
            _attend(q, kv, out, tables, contexts, starts, chosen, scale, per_part, begin, end)
            begin, end = next_piece(job)
    except Exception:
        job[2] = BROKEN  # nobody sees what leaves a C function


class _Common(NamedTuple):
    """What a step's layers have in common; ``held`` is what the entries point to."""

    share: Share
    entries: tuple[int, ...]
    held: tuple[torch.Tensor, ...]


def apart(inputs: StepInputs) -> bool:
    """Whether every block that the step writes stands in one table alone, and there once."""
    written = np.unique(inputs.slot_blocks.numpy())
    tables = torch.cat([sequence.table for sequence in inputs.sequences]).numpy()
    return int(np.isin(tables, written).sum()) == len(written)


def write_and_attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kv: torch.Tensor,
    inputs: StepInputs, scale: float,
) -> torch.Tensor:  # fmt: skip
    """Attention of one layer, [tokens, heads, head_dim], after writing its keys and values.

    Args:
        q: [tokens, heads, head_dim], float32 as all of them.
        keys, values: [tokens, kv_heads, head_dim].
        kv: [2, blocks, kv_heads, block_size, head_dim].
    """
    common = _common(inputs, (*kv.shape, q.shape[1]), scale)
    out = q.new_empty(q.shape)
    q, rows = rows_of(q)
    keys, values = flat(keys), flat(values)
    threads, pieces, tasks, heads_at_once = common.share
    job = np.array(
        (
            0, pieces, tasks, heads_at_once,
            keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            *rows, keys.data_ptr(), span(keys), values.data_ptr(), span(values),
            *entry(kv), *entry(out), _SEQUENCES, *common.entries,
        ),
        np.int64,
    )  # fmt: skip
    run_job(_body, job, threads)
    return out


def _common(inputs: StepInputs, shape: tuple[int, ...], scale: float) -> _Common:
    """Made for the first layer of a step, and for any of another shape or scale."""
    kept = inputs.kept.get((shape, scale))
    if kept is None:
        *_, kv_heads, block_size, dim, heads = shape
        chosen, _ = inputs.by_size
        shared = share(inputs.flat, chosen, heads, (kv_heads, block_size, dim))
        held = (
            *inputs.flat, chosen, torch.tensor([scale]), inputs.slot_blocks, inputs.slot_offsets
        )  # fmt: skip
        kept = _Common(shared, tuple(number for each in held for number in entry(each)), held)
        inputs.kept[shape, scale] = kept
    assert isinstance(kept, _Common)
    return kept
