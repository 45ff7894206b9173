"""How many numbers this processor computes with at once, for instructions that are written out."""

from __future__ import annotations

import numba
from llvmlite import binding, ir

# Numbers of float32 in a vector.
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
SHORT = ir.IntType(32)
VECTOR = ir.VectorType(ir.FloatType(), LANES)


def other_processor() -> bool:
    """Whether Numba has been told to compile for another processor than this one."""
    return bool(numba.config.CPU_NAME or numba.config.CPU_FEATURES)
