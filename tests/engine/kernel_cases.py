"""Random steps for attention kernels: scattered tables, ragged lengths, chunks."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from experiment.engine.step_inputs import StepInputs, build_inputs
from kvsim.step import Chunk, StepPlan

DIM = 8


@dataclass(frozen=True)
class Case:
    """Sequences as (earlier positions, queries) over blocks of ``block_size``."""

    sequences: tuple[tuple[int, int], ...]
    block_size: int
    heads: int = 4
    kv_heads: int = 4
    dim: int = DIM


@dataclass
class Step:
    """Tensors of one layer of one step; every slot that nobody may read holds NaN."""

    q: torch.Tensor
    kv: torch.Tensor
    inputs: StepInputs
    tables: dict[int, list[int]]
    scale: float


def make_step(case: Case, seed: int = 0) -> Step:
    """Draw tables from a shuffled pool, and write keys and values where they belong."""
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
