"""What memory is left for keys and values beside weights and everything else."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.sizing.geometry import KVGeometry
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts

# A context, kernels and activations of a step: neither model nor GPU says how much.
ASSUMED_OVERHEAD = 1 << 30


class PlanError(Exception):
    """A plan that cannot be made.

    Attributes:
        code: ``no_room``: weights and overhead leave nothing; ``no_block``: not one request of
            the maximum length fits; ``too_long``: every request is longer than allowed;
            ``positions``: a maximum length beyond the model's; ``no_lengths``; ``uneven``: heads
            cannot be split over that many GPUs.
        params: its numbers.
    """

    def __init__(self, code: str, **params: int) -> None:
        given = ", ".join(f"{name}={value}" for name, value in params.items())
        super().__init__(f"{code}: {given}")
        self.code, self.params = code, params


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory, and what of it is left for keys and values; bytes of all GPUs together.

    Attributes:
        usable: memory x utilisation; None where the budget itself was given.
        assumed: names of figures that nobody measured or declared.
    """

    kv: int
    memory: int
    utilisation: float | None = None
    usable: int | None = None
    weights: int | None = None
    overhead: int | None = None
    assumed: tuple[str, ...] = ()


def kv_budget(
    model: ModelFacts,
    gpu: GPUFacts,
    gpus: int = 1,
    utilisation: float = 0.9,
    overhead: int | None = None,
    dtype: str | None = None,
) -> KVBudget:
    """Memory x utilisation - weights - overhead; ``overhead`` is of one GPU.

    Raises:
        PlanError: ``no_room``, ``uneven``.
        ValueError: a utilisation that is not above 0 and at most 1, or no GPU.
    """
    if not 0 < utilisation <= 1 or gpus < 1:
        raise ValueError(f"{utilisation} of {gpus} GPUs")
    check_split(model, gpus)
    memory = gpu.memory_bytes * gpus
    usable = int(gpu.memory_bytes * utilisation) * gpus
    each = ASSUMED_OVERHEAD if overhead is None else overhead
    weights = model.weight_bytes(dtype)
    kv = usable - weights - each * gpus
    if kv <= 0:
        raise PlanError("no_room", usable=usable, weights=weights, overhead=each * gpus)
    assumed = ("overhead",) if overhead is None else ()
    return KVBudget(kv, memory, utilisation, usable, weights, each * gpus, assumed)


def check_split(model: ModelFacts, gpus: int) -> None:
    """Whether every rank can have as many heads as every other, as tensor parallelism asks.

    Raises:
        PlanError: ``uneven``.
    """
    heads, kv_heads = model.query_heads, model.geometry().kv_heads
    even = kv_heads % gpus == 0 or gpus % kv_heads == 0
    if heads % gpus or not even:
        raise PlanError("uneven", heads=heads, kv_heads=kv_heads, gpus=gpus)


def kv_copies(geometry: KVGeometry, gpus: int) -> int:
    """How often ranks keep the same keys and values: heads are split, not halved.

    A latent vector belongs to all heads, so every rank keeps it.
    """
    return gpus if geometry.tensors == 1 else -(-gpus // geometry.kv_heads)
