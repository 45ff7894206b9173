"""Preemption cost: tokens recomputed, or blocks swapped.

    recompute   [ prompt and generated tokens ]    one prefill of the lost tokens
    swap        [ 3 | 7 | 2 ] ─► host ─► [ 9 | 4 | 5 ]   bytes ÷ bandwidth + copies x launch cost

The comparison of the PagedAttention paper's section 7.3: small blocks need many copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.latency.clock import ATTOSECONDS
from kvsim.latency.roofline import Latency, StepWork
from kvsim.sim.config import SimConfig
from kvsim.sim.metrics import SimResult
from kvsim.sim.policies.paged import transfer_time
from kvsim.sizing.layout import LayerCache

# Assumed launch cost of one copy between GPU and host, in seconds.
COPY_S = 10e-6


def block_transfer_s(caches: Sequence[LayerCache]) -> float:
    """Return the fixed seconds per block: one copy for each layer's K and V, or latent vector."""
    return sum(1 if cache.kind == "latent" else 2 for cache in caches) * COPY_S


def recompute_cost(result: SimResult, latency: Latency) -> float | None:
    """Return the mean seconds of recomputation per preemption; None without preemptions."""
    if not result.preemptions.total:
        return None
    tokens = round(result.tokens.recomputed / result.preemptions.total)
    return latency.seconds(StepWork.of([(0, tokens, False)]))


def swap_cost(result: SimResult, config: SimConfig) -> float | None:
    """Return the mean seconds of swapping out and in per preemption; None without preemptions."""
    found = result.preemptions
    if not found.total:
        return None
    blocks = found.swapped_out_blocks + found.swapped_in_blocks
    return transfer_time(config, blocks) / ATTOSECONDS / found.total
