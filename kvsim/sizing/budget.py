"""KV budget: GPU memory minus weights and overhead."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.coded_error import CodedError
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts

# Assumed bytes per GPU of CUDA context, kernels and activations.
ASSUMED_OVERHEAD = 1 << 30


class PlanError(CodedError):
    """A plan is impossible.

    Attributes:
        code: ``no_room``: weights and overhead leave no KV budget; ``no_block``: a request of
            the maximum length does not fit; ``too_long``: every request exceeds the maximum
            length; ``positions``: the maximum length exceeds the model's; ``no_lengths``.
        params: values for the message.
    """


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory and its KV budget; bytes summed over all GPUs.

    Attributes:
        usable: memory x utilisation; None if the KV budget was given directly.
        assumed: names of values that were assumed.
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
    """Compute memory x utilisation - weights - overhead; ``overhead`` is bytes per GPU.

    Raises:
        PlanError: ``no_room``.
        ValueError: a utilisation outside (0, 1], or no GPU.
    """
    if not 0 < utilisation <= 1 or gpus < 1:
        raise ValueError(f"{utilisation} of {gpus} GPUs")
    memory = gpu.memory_bytes * gpus
    usable = int(gpu.memory_bytes * utilisation) * gpus
    per_gpu = ASSUMED_OVERHEAD if overhead is None else overhead
    weights = model.weight_bytes(dtype)
    kv = usable - weights - per_gpu * gpus
    if kv <= 0:
        raise PlanError("no_room", usable=usable, weights=weights, overhead=per_gpu * gpus)
    assumed = ("overhead",) if overhead is None else ()
    return KVBudget(kv, memory, utilisation, usable, weights, per_gpu * gpus, assumed)
