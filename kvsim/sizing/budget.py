"""KV budget: GPU memory minus weights and overhead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import hypot

from kvsim.base.coded_error import CodedError
from kvsim.sizing.gpus import GPUFacts
from kvsim.sizing.models import ModelFacts
from kvsim.sizing.overhead import Overhead, Range, ServerOptions, rank_overhead


class PlanError(CodedError):
    """A plan is impossible.

    Attributes:
        code: ``no_room``: weights and overhead leave no KV budget; ``no_block``: a request of
            the maximum length does not fit; ``too_long``: every request exceeds the maximum
            length; ``positions``: the maximum length exceeds the model's; ``no_lengths``;
            ``stages``: more pipeline stages than layers.
        params: values for the message.
    """


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory and its KV budget; bytes summed over all GPUs.

    Attributes:
        kv: what is expected; ``low``, ``high``: the least and the most.
        usable: memory x utilisation; None if the KV budget was given directly.
        overhead: buffers, activations, non-torch memory and CUDA graphs.
        assumed: names of values that were assumed.
        parts: what each part takes, where it is a range.
    """

    kv: int
    memory: int
    utilisation: float | None = None
    usable: int | None = None
    weights: int | None = None
    overhead: int | None = None
    assumed: tuple[str, ...] = ()
    low: int | None = None
    high: int | None = None
    parts: Mapping[str, Range] = field(default_factory=dict)


DEFAULTS = ServerOptions()
# Of the total that CUDA reports, where it was measured and where not: drivers differ.
_TOTAL_SPREAD, _TOTAL_UNKNOWN = 0.3, 0.5


def kv_budget(
    model: ModelFacts,
    gpu: GPUFacts,
    gpus: int = 1,
    utilisation: float | None = None,
    overhead: int | None = None,
    dtype: str | None = None,
    *,
    options: ServerOptions = DEFAULTS,
    max_length: int | None = None,
) -> KVBudget:
    """Compute memory x utilisation - weights - overhead.

    Args:
        gpus: of one engine: tensor-parallel ranks of each pipeline stage.
        utilisation: None: the default of the version of vLLM.
        overhead: bytes per GPU; None: a range, by :func:`kvsim.sizing.overhead.rank_overhead`.
        options: of the server.
        max_length: tokens of the longest request; None: the model's positions.

    Raises:
        PlanError: ``no_room``.
        ValueError: a utilisation outside (0, 1], or no GPU for each stage.
    """
    share = options.utilisation() if utilisation is None else utilisation
    if not 0 < share <= 1 or gpus < 1 or gpus % options.pipeline_parallel:
        raise ValueError(f"{share} of {gpus} GPUs")
    usable = int(gpu.cuda_bytes * share)
    length = max_length or model.max_positions or 8192
    tensor = gpus // options.pipeline_parallel
    needed = rank_overhead(model, gpu, options, length, tensor, dtype)
    if overhead is not None:
        none = Range.exact(0)
        needed = Overhead(needed.weights, Range.exact(overhead), none, none, none)
    weights = needed.weights.middle
    other = sum(part.middle for part in needed[1:])
    kv = usable - weights - other
    if kv <= 0:
        raise PlanError(
            "no_room", usable=usable * gpus, weights=weights * gpus, overhead=other * gpus
        )
    spread = int((_TOTAL_SPREAD if gpu.is_measured else _TOTAL_UNKNOWN) * (1 << 30) * share)
    # Parts err independently of each other: their deviations add up as squares.
    low = kv - round(hypot(spread, *(part.high - part.middle for part in needed)))
    high = kv + round(hypot(spread, *(part.middle - part.low for part in needed)))
    return KVBudget(
        kv=kv * gpus,
        memory=gpu.memory_bytes * gpus,
        utilisation=share,
        usable=usable * gpus,
        weights=weights * gpus,
        overhead=other * gpus,
        assumed=("overhead",) if overhead is None else (),
        low=max(0, low) * gpus,
        high=high * gpus,
        parts={name: part.times(gpus) for name, part in needed._asdict().items() if part.high},
    )
