"""Random steps for attention kernels: scattered tables, ragged lengths, chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from experiment.engine.step_inputs import FlatSequences, StepInputs, build_inputs
from kvsim.core.step import Chunk, StepPlan

DIM = 8


@dataclass(frozen=True)
class Case:
    """Sequences as (earlier positions, queries) over blocks of ``block_size``."""

    sequences: tuple[tuple[int, int], ...]
    block_size: int
    heads: int = 4
    kv_heads: int = 4
    dim: int = DIM


CASES = {
    "one-token contexts": Case(((0, 1), (0, 1), (0, 1)), 4),
    "first chunks of ragged lengths": Case(((0, 7), (0, 1), (0, 13), (0, 2)), 4),
    "decoding at ragged contexts": Case(((6, 1), (1, 1), (30, 1)), 4),
    "contexts that end with a block": Case(((0, 4), (3, 1), (4, 4), (7, 1)), 4),
    "contexts that begin a block": Case(((4, 1), (8, 1), (4, 5)), 4),
    "chunks behind earlier positions": Case(((5, 3), (1, 9), (16, 2), (3, 4)), 4),
    "blocks of one slot": Case(((5, 3), (0, 4), (6, 1)), 1),
    "one slab each": Case(((5, 3), (0, 4), (6, 1)), 64),
    "grouped heads": Case(((5, 3), (0, 4), (6, 1)), 4, heads=6, kv_heads=2),
    "a context of several tiles": Case(((300, 1), (127, 1), (128, 1), (255, 2)), 16),
    "chunks behind several tiles": Case(((250, 9), (120, 20)), 7),
    "large chunks with decoding": Case(((0, 40), (200, 1), (150, 30), (0, 3)), 16),
    "slabs of 512": Case(((300, 2), (511, 1), (0, 5)), 512),
    "blocks of one slot over several tiles": Case(((300, 1), (140, 3)), 1),
    "one head for all": Case(((5, 3), (0, 4), (6, 1)), 3, heads=4, kv_heads=1),
}


@dataclass
class Step:
    """Tensors of one layer in one step; slots that must not be read contain NaN."""

    q: torch.Tensor
    kv: torch.Tensor
    inputs: StepInputs
    tables: dict[int, list[int]]
    scale: float


def make_step(case: Case, seed: int = 0) -> Step:
    """Sample tables from a shuffled pool, and write keys and values to their slots."""
    generator = torch.Generator().manual_seed(seed)
    needs = [-(-(a + b) // case.block_size) for a, b in case.sequences]
    blocks = torch.randperm(sum(needs) + 3, generator=generator).tolist()
    tables: dict[int, list[int]] = {}
    for request, need in enumerate(needs):
        tables[request], blocks = blocks[:need], blocks[need:]
    shape = (2, sum(needs) + 3, case.kv_heads, case.block_size, case.dim)
    kv = torch.full(shape, float("nan"))
    for request, (earlier, queries) in enumerate(case.sequences):
        for position in range(earlier + queries):
            block = tables[request][position // case.block_size]
            values = torch.randn((2, case.kv_heads, case.dim), generator=generator)
            kv[:, block, :, position % case.block_size] = values
    chunks = [Chunk(r, a, b, samples=True) for r, (a, b) in enumerate(case.sequences)]
    tokens = {r: [0] * (a + b) for r, (a, b) in enumerate(case.sequences)}
    inputs = build_inputs(
        StepPlan(0, chunks=tuple(chunks)), tokens, tables, case.block_size, torch.device("cpu")
    )
    rows = sum(b for _, b in case.sequences)
    q = torch.randn((rows, case.heads, case.dim), generator=generator)
    return Step(q, kv, inputs, tables, case.dim**-0.5)


def moved(step: Step, device: torch.device, dtype: torch.dtype = torch.float32) -> Step:
    """The same step on another device; queries, keys and values in ``dtype``."""
    inputs = step.inputs
    there = replace(
        inputs,
        input_ids=inputs.input_ids.to(device),
        position_ids=inputs.position_ids.to(device),
        slot_blocks=inputs.slot_blocks.to(device),
        slot_offsets=inputs.slot_offsets.to(device),
        sampled_rows=inputs.sampled_rows.to(device),
        sequences=tuple(replace(s, table=s.table.to(device)) for s in inputs.sequences),
        flat=FlatSequences(*(tensor.to(device) for tensor in inputs.flat)),
        decoding=inputs.decoding.to(device),
    )
    return replace(step, q=step.q.to(device, dtype), kv=step.kv.to(device, dtype), inputs=there)
