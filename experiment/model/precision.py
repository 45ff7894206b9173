"""Dtype of a run, and whether the CPU has instructions for it."""

from __future__ import annotations

from pathlib import Path

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Flags in /proc/cpuinfo on x86 and ARM.
_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def resolve_dtype(dtype: str, device: str) -> str:
    """Name of the torch dtype: as requested, or the default of ``auto`` on ``device``."""
    if dtype != "auto":
        return dtype
    return "float16" if device == "cuda" else "float32"


def slow_on_cpu(dtype: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU has no instructions for ``dtype``; False if unknown."""
    wanted = _FLAGS.get(dtype)
    if wanted is None:
        return False
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in text.splitlines():
        if line.lower().startswith(("flags", "features")):
            return not wanted & set(line.partition(":")[2].split())
    return False
