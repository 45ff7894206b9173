"""What a preemption costs: tokens computed again, or blocks moved to the host and back.

    recompute   [ prompt and what was generated ]  one prefill of the tokens that were lost
    swap        [ 3 | 7 | 2 ] ─► host ─► [ 9 | 4 | 5 ]   bytes ÷ bandwidth + copies x their start

The comparison of the PagedAttention paper's section 7.3: a small block is many copies.
"""

from __future__ import annotations

from kvsim.latency.clock import ATTOSECONDS
from kvsim.latency.roofline import Latency, StepWork
from kvsim.sim.config import SimConfig
from kvsim.sim.metrics import SimResult
from kvsim.sim.policies.paged import transfer
from kvsim.sizing.geometry import KVGeometry

# Starting one copy between GPU and host takes about this long; nobody prints it, so it is assumed.
COPY_S = 10e-6


def block_transfer_s(geometry: KVGeometry) -> float:
    """Seconds that moving a block costs beside its bytes: each K and V of a layer is a copy."""
    return geometry.tensors * geometry.layers * COPY_S


def recompute_price(result: SimResult, latency: Latency) -> float | None:
    """Seconds in which the mean preempted request is computed again; None: none was preempted."""
    if not result.preemptions.total:
        return None
    tokens = round(result.tokens.recomputed / result.preemptions.total)
    return latency.seconds(StepWork.of([(0, tokens, False)]))


def swap_price(result: SimResult, config: SimConfig) -> float | None:
    """Seconds in which the mean preempted request's blocks go and come back; None: none did."""
    found = result.preemptions
    if not found.total:
        return None
    blocks = found.swapped_out_blocks + found.swapped_in_blocks
    return transfer(config, config.shape, blocks) / ATTOSECONDS / found.total
