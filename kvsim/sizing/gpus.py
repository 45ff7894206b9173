"""Memory and speed of GPUs, from data sheets.

Memory is the total that NVML reports (ECC on), in MiB: data sheets round it, and ECC takes a
sixteenth of GDDR6. MI300X has the data sheet's figure. FLOP/s are 16-bit dense on tensor (matrix)
cores with 32-bit accumulation. The link is PCIe x16, one direction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvsim.spelling import nearest

MIB = 1 << 20
_PCIE3, _PCIE4, _PCIE5 = 15.75e9, 31.5e9, 63.0e9


class UnknownGPUError(KeyError):
    """No such GPU in the catalogue; ``close`` lists similar names."""

    def __init__(self, name: str, close: tuple[str, ...]) -> None:
        super().__init__(name)
        self.name, self.close = name, close


@dataclass(frozen=True, slots=True)
class GPUFacts:
    """One GPU.

    Attributes:
        memory_bytes: total memory that the driver reports.
        bandwidth: memory bandwidth in bytes per second.
        flops: 16-bit dense FLOP/s.
        link_bandwidth: to the host, in bytes per second, one direction.
        source: the data sheet.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    link_bandwidth: float
    source: str


_GA102 = "NVIDIA Ampere GA102 architecture white paper, appendix"
_ADA = "NVIDIA Ada architecture white paper, appendix A"
_BLACKWELL = "NVIDIA RTX Blackwell architecture white paper, appendix A"
_A100, _H100 = "NVIDIA A100 data sheet", "NVIDIA H100 data sheet"
_V100 = "NVIDIA V100 data sheet"
# name, MiB, GB/s, TFLOP/s, link, source
_ROWS = (
    ("rtx-3090", 24576, 936, 71, _PCIE4, _GA102),
    ("rtx-4090", 24564, 1008, 165.2, _PCIE4, _ADA),
    ("rtx-5090", 32607, 1792, 209.5, _PCIE5, _BLACKWELL),
    ("t4", 15360, 320, 65, _PCIE3, "NVIDIA T4 data sheet"),
    ("v100-16gb", 16384, 900, 125, _PCIE3, _V100 + " (SXM2)"),
    ("v100-32gb", 32768, 900, 125, _PCIE3, _V100 + " (SXM2)"),
    ("a10", 23028, 600, 125, _PCIE4, "NVIDIA A10 data sheet"),
    ("a10g", 23028, 600, 70, _PCIE4, "NVIDIA A10G data sheet (AWS G5)"),
    ("a100-40gb", 40960, 1555, 312, _PCIE4, _A100 + " (SXM, 40 GB)"),
    ("a100-80gb", 81920, 2039, 312, _PCIE4, _A100 + " (SXM, 80 GB)"),
    ("a100-80gb-pcie", 81920, 1935, 312, _PCIE4, _A100 + " (PCIe, 80 GB)"),
    ("l4", 23034, 300, 121, _PCIE4, "NVIDIA L4 data sheet"),
    ("l40s", 46068, 864, 362, _PCIE4, "NVIDIA L40S data sheet"),
    ("h100", 81559, 3350, 989, _PCIE5, _H100 + " (SXM)"),
    ("h100-pcie", 81559, 2000, 756, _PCIE5, _H100 + " (PCIe)"),
    ("h200", 143771, 4800, 989, _PCIE5, "NVIDIA H200 data sheet (SXM)"),
    ("mi300x", 196608, 5300, 1307.4, _PCIE5, "AMD Instinct MI300X data sheet"),
)
GPUS: Mapping[str, GPUFacts] = MappingProxyType(
    {
        name: GPUFacts(name, mib * MIB, gb * 1e9, tera * 1e12, link, source)
        for name, mib, gb, tera, link, source in _ROWS
    }
)


# Names that drivers and clouds use, other than vendor + name above.
_ALSO = {
    "v100-16gb": ("v100-sxm2-16gb",),
    "v100-32gb": ("v100-sxm2-32gb",),
    "a100-40gb": ("a100-sxm4-40gb", "a100-sxm-40gb", "a100-pcie-40gb"),
    "a100-80gb": ("a100-sxm4-80gb", "a100-sxm-80gb"),
    "h100": ("h100-80gb-hbm3", "h100-80gb", "h100-sxm", "h100-sxm5"),
    "h200": ("h200-sxm",),
    "mi300x": ("mi300x-oam",),
}
_MAKERS = frozenset(("nvidia", "amd", "geforce", "tesla", "instinct"))
_LISTED = re.compile(r"GPU \d+: | \(UUID: .*", re.IGNORECASE)  # a line of nvidia-smi -L


def _parts(name: str) -> list[str]:
    parts = re.split(r"[\s_-]+", _LISTED.sub("", name).strip().lower())
    return [part for part in parts if part not in _MAKERS]


_BY_PARTS = {
    frozenset(_parts(each)): name for name in GPUS for each in (name, *_ALSO.get(name, ()))
}


def find_gpu(name: str) -> GPUFacts:
    """Find a GPU by catalogue name, or by the name that NVML or nvidia-smi prints; ignores case.

    Raises:
        UnknownGPUError: with GPUs of the same family, or similar names.
    """
    parts = _parts(name)
    wanted = frozenset(parts)
    if wanted in _BY_PARTS:
        return GPUS[_BY_PARTS[wanted]]
    family = [each for each in GPUS if _chip(each) in wanted]
    family.sort(key=lambda each: -len(wanted.intersection(_parts(each))))
    raise UnknownGPUError(name, tuple(family) or nearest("-".join(parts), GPUS, 3))


def _chip(name: str) -> str:
    """Return the part that identifies the chip: ``4090`` of ``rtx-4090``."""
    return next((part for part in _parts(name) if re.search(r"\d", part)), name)
