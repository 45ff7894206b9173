"""Dtypes of the paged KV cache: their sizes and hardware requirements.

Names are vLLM's (``kv_cache_dtype``). Contiguous arms always use the model's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from experiment.text.errors import user_error
from kvsim.sizing.geometry import KVGeometry

# Arms that run on the paged engine.
ENGINE_ARMS = ("slabs", "paged")
Capability = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """Bytes of an element, bytes of the scale of a block and head, and the required capability.

    ``capability`` is the minimum CUDA compute capability; None: any device.
    """

    element_bytes: int
    scale_bytes: int
    capability: Capability | None


FORMATS = {
    "int8": CacheFormat(1, 4, None),
    # fp8 (e4m3) needs Ada or Hopper.
    "fp8": CacheFormat(1, 0, (8, 9)),
}


def cache_geometry(model: KVGeometry, kv_dtype: str) -> KVGeometry:
    """Geometry of a paged cache in ``kv_dtype``; ``auto`` is the model's dtype."""
    if kv_dtype == "auto":
        return model
    form = FORMATS[kv_dtype]
    return replace(model, element_bytes=form.element_bytes, scale_bytes=form.scale_bytes)


def check_kv_dtype(
    kv_dtype: str, arms: Sequence[str], device: str, capability: Capability | None
) -> None:
    """Refuse a KV dtype that the device does not support, before anything is loaded.

    Args:
        kv_dtype: ``cache.kv_dtype``.
        arms: names of arms; without one on the paged engine nothing is refused.
        device: ``cpu`` or ``cuda``.
        capability: CUDA compute capability of the GPU; None on the CPU.

    Raises:
        UserError: the hardware does not support it.
    """
    form = FORMATS.get(kv_dtype)
    if form is None or form.capability is None or not set(arms) & set(ENGINE_ARMS):
        return
    least = _version(form.capability)
    if device != "cuda" or capability is None:
        raise user_error("error.kv_dtype.cpu", kv_dtype=kv_dtype, least=least)
    if capability < form.capability:
        raise user_error(
            "error.kv_dtype.gpu", kv_dtype=kv_dtype, least=least, found=_version(capability)
        )


def _version(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
