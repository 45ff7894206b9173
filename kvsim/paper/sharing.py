"""Blocks saved by sharing the prompt between samples, in closed form.

    n = 2, prompt of 20, block of 4      held: [p p p p p] [a a] [b b]    without: 2 x (5 + 2)

There is one sequence until the prompt is computed. From the first token on, all samples share the
prompt's full blocks; the last, partial one is copied when it is written, by all but one. A test
holds these sums equal to the simulator's. Beams have no closed form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvsim.accounting.slots import Sharing
from kvsim.core.blocks import blocks_needed
from kvsim.paper.steady import config
from kvsim.paper.workloads import PaperWorkload
from kvsim.planning.saturation import block_sum
from kvsim.sim.simulator import simulate


def samples_sharing(lengths: Iterable[tuple[int, int]], samples: int, block_size: int) -> Sharing:
    """Return the block-steps of (prompt, new) pairs without waiting, ``samples`` samples each."""
    unshared = held = 0
    for prompt, new in lengths:
        first = blocks_needed(prompt, block_size)
        # Slots prompt + 1 ... prompt + new - 1, one step each.
        steps = new - 1
        entries = samples * (block_sum(prompt + steps, block_size) - block_sum(prompt, block_size))
        unshared += first + entries
        held += first + entries - steps * (samples - 1) * (prompt // block_size)
    return Sharing(unshared, held)


def samples_saving(workload: PaperWorkload, samples: int, seed: int) -> float:
    """Return the share of blocks saved by samples, see :class:`kvsim.accounting.slots.Sharing`."""
    lengths = ((each.prompt_tokens, each.output_tokens) for each in workload.sample(10_000, seed))
    saved = samples_sharing(lengths, samples, 16).share
    assert saved is not None
    return saved


def beams_saving(
    workload: PaperWorkload, beams: int, branching: float, seed: int, requests: int
) -> float:
    """Return the share of blocks saved by beams, replaced with probability ``branching``."""
    asked = replace(config("paged"), beams=beams, branching=branching, seed=seed)
    result = simulate(workload.sample(requests, seed), asked)
    assert result.sharing is not None
    assert result.sharing.share is not None
    return result.sharing.share
