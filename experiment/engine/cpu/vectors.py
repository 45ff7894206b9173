"""Vector width of this processor, for hand-written LLVM instructions."""

from __future__ import annotations

import numba
from llvmlite import binding, ir

# float32 numbers in a vector.
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
SHORT = ir.IntType(32)
VECTOR = ir.VectorType(ir.FloatType(), LANES)


def is_cross_compiling() -> bool:
    """Whether Numba is configured to compile for another processor."""
    return bool(numba.config.CPU_NAME or numba.config.CPU_FEATURES)
