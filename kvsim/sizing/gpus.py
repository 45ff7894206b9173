"""Memory and speed of GPUs, from data sheets.

Memory is the total that NVML reports, in MiB: data sheets round it, and ECC takes a sixteenth of
GDDR6 where it is on by default. AMD's have the data sheet's figure. FLOP/s are 16-bit dense on
tensor (matrix) cores with 32-bit accumulation. The link leads to the host: PCIe, or NVLink to
Grace; one direction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvsim.base.spelling import nearest

MIB = 1 << 20
_PCIE3, _PCIE4, _PCIE5 = 15.75e9, 31.5e9, 63.0e9
_NVLINK_C2C = 450e9  # one direction, between Grace and the GPU


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
        cuda_bytes: of it, what CUDA (HIP) gives to a process as the total, on which vLLM's share is
            taken; ``is_measured``: seen in a public log, otherwise half a GiB less.
        bandwidth: memory bandwidth in bytes per second.
        flops: 16-bit dense FLOP/s.
        link_bandwidth: to the host, in bytes per second, one direction.
        peer_bandwidth: to other GPUs over a switch, NVLink, else ``link_bandwidth``; where
            ``is_mesh``, to each one of them: Infinity Fabric.
        source: the data sheet.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    flops: float
    link_bandwidth: float
    source: str
    cuda_bytes: int
    peer_bandwidth: float
    is_measured: bool = False
    is_mesh: bool = False

    def ring_bandwidth(self, gpus: int) -> float:
        """Return the bytes per second that each of ``gpus`` sends to the others."""
        return self.peer_bandwidth * (max(1, gpus - 1) if self.is_mesh else 1)


# GiB that torch prints as a GPU's total, from public start-up logs of vLLM.
_CUDA_GIB = {
    "rtx-3090": 23.57, "rtx-4090": 23.52, "rtx-5090": 31.36, "rtx-5080": 15.51, "t4": 14.58,
    "rtx-5070-ti": 15.51, "rtx-a6000": 47.5, "rtx-pro-6000": 94.99, "rtx-pro-6000-server": 94.99,
    "v100-16gb": 15.77, "v100-32gb": 31.74, "a10": 22.06, "a10g": 22.06, "l4": 22.03, "l40s": 44.40,
    "a40": 44.45, "a100-40gb": 39.49, "a100-40gb-pcie": 39.49, "a100-80gb": 79.25,
    "a100-80gb-pcie": 79.25, "h100": 79.19, "h100-pcie": 79.19, "h800": 79.19, "h200": 139.81,
    "b200": 178.35, "b300": 267.69, "gb10": 121.63, "mi300x": 191.98,
}  # fmt: skip
_HIDDEN = 1 << 29  # of a GPU that is not among them
# GB/s to other GPUs, one direction, from the data sheets below; bridges of two cards do not count.
_PEER_GB = {
    **dict.fromkeys(("v100-16gb", "v100-32gb"), 150),
    **dict.fromkeys(("a100-40gb", "a100-80gb"), 300),
    **dict.fromkeys(("a800-80gb", "h800"), 200),
    **dict.fromkeys(("h100", "h200", "h20", "gh200-96gb"), 450),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), 900),
    "gb10": 25,
}
_MESH_GB = {"mi300x": 64, "mi325x": 64, "mi355x": 76.8}
_GA102 = "NVIDIA Ampere GA102 architecture white paper, appendix"
_ADA = "NVIDIA Ada architecture white paper, appendix A"
_BLACKWELL = "NVIDIA RTX Blackwell architecture white paper, appendix A"
_RTX_PRO = "NVIDIA RTX PRO 6000 Blackwell data sheet"
_A100, _H100 = "NVIDIA A100 data sheet", "NVIDIA H100 data sheet"
_V100 = "NVIDIA V100 data sheet"
_GRACE = "NVIDIA GB200 NVL72 and GB300 NVL72 data sheets, a GPU"
# name, MiB, GB/s, TFLOP/s, link, source
_ROWS = (
    ("rtx-3060", 12288, 360, 25.6, _PCIE4, _GA102 + " (GA106)"),
    ("rtx-3080", 10240, 760, 59.5, _PCIE4, _GA102),
    ("rtx-3090", 24576, 936, 71, _PCIE4, _GA102),
    ("rtx-4060-ti-16gb", 16380, 288, 44.1, _PCIE4 / 2, _ADA + " (AD106)"),
    ("rtx-4070-ti-super", 16376, 672, 88.2, _PCIE4, _ADA + " (AD103)"),
    ("rtx-4080", 16376, 716.8, 97.5, _PCIE4, _ADA),
    ("rtx-4090", 24564, 1008, 165.2, _PCIE4, _ADA),
    ("rtx-5060-ti-16gb", 16311, 448, 47.4, _PCIE5 / 2, _BLACKWELL + " (GB206)"),
    ("rtx-5070", 12227, 672, 61.7, _PCIE5, _BLACKWELL),
    ("rtx-5070-ti", 16303, 896, 87.9, _PCIE5, _BLACKWELL),
    ("rtx-5080", 16303, 960, 112.6, _PCIE5, _BLACKWELL),
    ("rtx-5090", 32607, 1792, 209.5, _PCIE5, _BLACKWELL),
    ("rtx-a6000", 49140, 768, 154.8, _PCIE4, "NVIDIA RTX A6000 data sheet"),
    ("rtx-6000-ada", 49140, 960, 364.2, _PCIE4, "NVIDIA RTX 6000 Ada data sheet"),
    ("rtx-pro-6000", 97887, 1792, 503.8, _PCIE5, _RTX_PRO + " (workstation)"),
    ("rtx-pro-6000-server", 97887, 1597, 503.8, _PCIE5, _RTX_PRO + " (server)"),
    ("t4", 15360, 320, 65, _PCIE3, "NVIDIA T4 data sheet"),
    ("v100-16gb", 16384, 900, 125, _PCIE3, _V100 + " (SXM2)"),
    ("v100-32gb", 32768, 900, 125, _PCIE3, _V100 + " (SXM2)"),
    ("a10", 23028, 600, 125, _PCIE4, "NVIDIA A10 data sheet"),
    ("a10g", 23028, 600, 70, _PCIE4, "NVIDIA A10G data sheet (AWS G5)"),
    ("a40", 46068, 696, 149.7, _PCIE4, "NVIDIA A40 data sheet"),
    ("a100-40gb", 40960, 1555, 312, _PCIE4, _A100 + " (SXM, 40 GB)"),
    ("a100-40gb-pcie", 40960, 1555, 312, _PCIE4, _A100 + " (PCIe, 40 GB)"),
    ("a100-80gb", 81920, 2039, 312, _PCIE4, _A100 + " (SXM, 80 GB)"),
    ("a100-80gb-pcie", 81920, 1935, 312, _PCIE4, _A100 + " (PCIe, 80 GB)"),
    ("a800-80gb", 81920, 2039, 312, _PCIE4, "NVIDIA A800 data sheet (SXM, 80 GB)"),
    ("l4", 23034, 300, 121, _PCIE4, "NVIDIA L4 data sheet"),
    ("l20", 46068, 864, 119.5, _PCIE4, "NVIDIA L20 data sheet"),
    ("l40", 46068, 864, 181, _PCIE4, "NVIDIA L40 data sheet"),
    ("l40s", 46068, 864, 362, _PCIE4, "NVIDIA L40S data sheet"),
    ("h20", 97871, 4000, 148, _PCIE5, "NVIDIA H20 data sheet"),
    ("h100", 81559, 3350, 989, _PCIE5, _H100 + " (SXM)"),
    ("h100-pcie", 81559, 2000, 756, _PCIE5, _H100 + " (PCIe)"),
    ("h100-nvl", 95830, 3900, 835, _PCIE5, _H100 + " (NVL)"),
    ("h800", 81559, 3350, 989, _PCIE5, "NVIDIA H800 data sheet (SXM)"),
    ("h200", 143771, 4800, 989, _PCIE5, "NVIDIA H200 data sheet (SXM)"),
    ("gh200-96gb", 97871, 4000, 989, _NVLINK_C2C, "NVIDIA GH200 data sheet (96 GB)"),
    ("b200", 183359, 8000, 2250, _PCIE5, "NVIDIA DGX B200 data sheet, a GPU"),
    ("b300", 275040, 8000, 2250, _PCIE5 * 2, "NVIDIA DGX B300 data sheet, a GPU"),
    ("gb200", 189471, 8000, 2500, _NVLINK_C2C, _GRACE),
    ("gb300", 284208, 8000, 2500, _NVLINK_C2C, _GRACE),
    ("gb10", 122570, 273, 125, 273e9, "NVIDIA DGX Spark data sheet; memory shared with CPU"),
    ("mi300x", 196608, 5300, 1307.4, _PCIE5, "AMD Instinct MI300X data sheet"),
    ("mi325x", 262144, 6000, 1307.4, _PCIE5, "AMD Instinct MI325X data sheet"),
    ("mi355x", 294912, 8000, 2516.6, _PCIE5, "AMD Instinct MI355X data sheet"),
)


def _cuda_bytes(name: str, memory: int) -> int:
    known = _CUDA_GIB.get(name)
    return max(1, memory - _HIDDEN) if known is None else int(known * (1 << 30))


GPUS: Mapping[str, GPUFacts] = MappingProxyType(
    {
        name: GPUFacts(
            name, mib * MIB, gb * 1e9, tera * 1e12, link, source,
            _cuda_bytes(name, mib * MIB), (_PEER_GB | _MESH_GB).get(name, link / 1e9) * 1e9,
            name in _CUDA_GIB, name in _MESH_GB,
        )
        for name, mib, gb, tera, link, source in _ROWS
    }
)  # fmt: skip


# Names that drivers and clouds use, other than vendor + name above.
_ALSO = {
    "v100-16gb": ("v100-sxm2-16gb",),
    "v100-32gb": ("v100-sxm2-32gb",),
    "a100-40gb": ("a100-sxm4-40gb", "a100-sxm-40gb"),
    "a100-80gb": ("a100-sxm4-80gb", "a100-sxm-80gb"),
    "a800-80gb": ("a800-sxm4-80gb", "a800"),
    "gb10": ("dgx-spark", "spark"),
    "gh200-96gb": ("gh200-480gb", "gh200-120gb", "gh200"),
    "b300": ("b300-sxm6-ac", "b300-sxm"),
    "b200": ("b200-sxm",),
    "h100": ("h100-80gb-hbm3", "h100-80gb", "h100-sxm", "h100-sxm5"),
    "h800": ("h800-80gb", "h800-sxm"),
    "l40s": ("l40s-48gb",),
    "rtx-6000-ada": ("rtx-6000-ada-generation",),
    "rtx-4060-ti-16gb": ("rtx-4060-ti",),
    "rtx-5060-ti-16gb": ("rtx-5060-ti",),
    "rtx-pro-6000": (
        "rtx-pro-6000-blackwell-workstation-edition",
        "rtx-pro-6000-blackwell",
        "rtx-pro-6000-blackwell-max-q-workstation-edition",
    ),
    "rtx-pro-6000-server": ("rtx-pro-6000-blackwell-server-edition",),
    "h200": ("h200-sxm",),
    "mi300x": ("mi300x-oam",),
    "mi325x": ("mi325x-oam",),
    "mi355x": ("mi355x-oam",),
}
_MAKERS = frozenset(("nvidia", "amd", "geforce", "tesla", "instinct"))
_LISTED = re.compile(r"GPU \d+: | \(UUID: .*", re.IGNORECASE)  # a line of nvidia-smi -L


def custom_gpu(memory: int, bandwidth: float, flops: float) -> GPUFacts:
    """Return a GPU of ``memory`` bytes that is not in the catalogue; rates are per second."""
    name = f"{memory / (1 << 30):g}GiB"
    cuda = _cuda_bytes(name, memory)
    return GPUFacts(name, memory, bandwidth, flops, _PCIE4, "given", cuda, _PCIE4)


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
