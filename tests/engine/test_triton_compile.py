"""The Triton kernels compiled for GPUs that are not here: what is launched, exactly as launched.

Twelve shapes, and in `make test-full` all that the engine accepts.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from sweeps import FULL

from experiment.engine.quantized import FP8, from_blocks

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton (Linux on x86-64)"
)
# Bytes of shared memory that a program may have on the smallest GPUs that are supported, and what
# a multiprocessor of theirs has for its programs, each of which takes 1 KiB more; registers.
SHARED, SHARED_OF_ALL, REGISTERS = 99 << 10, 100 << 10, 1 << 16
# First version that compiles code as good as asked here; older code has to fit and no more.
FAST = (3, 5)
# Bytes of a thread that the compiler puts aside in some kernels over eight bits, of which it wants
# to have 128 or 255 registers.
SPILLED = 20
TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32", torch.int64: "i64", FP8: "fp8e4nv",
}  # fmt: skip
HALF = (torch.float16, torch.bfloat16)


class Shape(NamedTuple):
    capability: int
    dtype: torch.dtype
    pool: torch.dtype | None  # None: the model's own precision
    group: int
    dim: int
    block_size: int = 16


SOME = [
    Shape(80, torch.float16, None, 1, 64),
    Shape(80, torch.bfloat16, None, 1, 128),
    Shape(80, torch.float16, torch.int8, 4, 128),
    Shape(80, torch.float32, None, 4, 128, 1),
    Shape(89, torch.bfloat16, None, 1, 64),
    Shape(89, torch.float16, None, 1, 128),
    Shape(89, torch.float16, torch.int8, 4, 128),
    Shape(89, torch.float16, FP8, 1, 64),
    Shape(90, torch.float16, None, 1, 64, 256),
    Shape(90, torch.bfloat16, None, 1, 128),
    Shape(90, torch.bfloat16, torch.int8, 4, 128),
    Shape(90, torch.bfloat16, None, 4, 256),
]
ALL = [
    Shape(capability, dtype, pool, group, dim)
    for capability, dtype, pool, group, dim in product(
        (80, 89, 90),
        (*HALF, torch.float32),
        (None, torch.int8, FP8),
        (1, 4),
        (16, 64, 80, 128, 256),
    )
    if (capability, pool) != (80, FP8)
]
SHAPES = SOME + ALL if FULL else SOME
Launch = tuple[Any, tuple[Any, ...], dict[str, int]]


class Recorder:
    """Stands in for a kernel and remembers how it was launched."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(side > 0 for side in grid)
        return lambda *args, **options: self.launches.append((self.kernel, args, options))


def launched(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> list[Launch]:
    """Everything that a run launches for one layer of this shape."""
    from experiment.engine.cuda import triton_decode, triton_prefill, triton_write
    from experiment.engine.cuda.triton_kernel import warm_up

    found: list[Launch] = []
    for module, names in (
        (triton_decode, ("_decode", "_combine")),
        (triton_prefill, ("_prefill",)),
        (triton_write, ("_write",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Recorder(getattr(module, name), found))
    _, dtype, pool, group, dim, block_size = shape
    kv = torch.zeros(2, 3, 8, block_size, dim, dtype=dtype)
    warm_up(kv if pool is None else from_blocks(kv, pool), 8 * group, dtype)
    names = [kernel.fn.__name__ for kernel, _, _ in found]
    # One split alone, then several with what combines them.
    assert names[:4] == ["_decode", "_prefill", "_decode", "_combine"]
    assert names[4:] == (["_write"] if pool is None else [])
    return found


def compile_for(capability: int, launch: Launch) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, args, options = launch
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[tuple[int], list[list[Any]]] = {}
    for index, (parameter, value) in enumerate(zip(kernel.params, args, strict=True)):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
        elif isinstance(value, torch.Tensor):
            signature[parameter.name] = "*" + TYPES[value.dtype]
            aligned[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@cache
def program(name: str) -> str:
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def version() -> tuple[int, ...]:
    import triton

    return tuple(map(int, triton.__version__.split(".")[:2]))


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, encoding="utf-8", check=True)
    return done.stdout + done.stderr


def registers_and_spills(compiled: Any, capability: int, at: Path) -> tuple[int, int]:
    """Registers of a thread, and bytes that it stores elsewhere for want of them."""
    at.write_text(compiled.asm["ptx"], encoding="utf-8")
    target = f"-arch=sm_{capability}{'a' * (capability >= 90)}"
    said = run(program("ptxas"), "-v", target, str(at), "-o", os.devnull)
    [used], [spilled] = re.findall(r"Used (\d+)", said), re.findall(r"(\d+) bytes spill st", said)
    return int(used), int(spilled)


def loop(compiled: Any, at: Path) -> list[str]:
    """Instructions of the longest stretch that a branch goes back over."""
    at.write_bytes(compiled.asm["cubin"])
    code: list[str] = []
    labels: dict[str, int] = {}
    longest: list[str] = []
    for line in run(program("nvdisasm"), "-c", str(at)).splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            labels[label[1]] = len(code)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            code.append(found[1])
            if target := re.search(r"BRA.*\((\.L_\w+)\)", found[1]):
                stretch = code[labels.get(target[1], len(code)) :]
                longest = max(longest, stretch, key=len)
    return longest


def argument(launch: Launch, name: str) -> int:
    """Value that a kernel is launched with."""
    return int(launch[1][[parameter.name for parameter in launch[0].params].index(name)])


def bytes_per_clock(shape: Shape, launch: Launch, code: list[str], warps: int) -> float:
    """Bytes of keys and values that a multiprocessor reads per clock: four instructions in each."""
    read = 2 * argument(launch, "TILE") * shape.dim * (shape.pool or shape.dtype).itemsize
    return read / len(code) * 4 / warps


def least_bytes(shape: Shape) -> float:
    """Bytes per clock and multiprocessor that decoding must reach; 0 where none are set."""
    if shape.dtype in HALF and (shape.pool, shape.group) == (None, 1) and shape.dim in (64, 128):
        return 45.0
    int8 = shape.dtype in HALF and (shape.pool, shape.group, shape.dim) == (torch.int8, 4, 128)
    return 15.0 if int8 and shape.capability > 80 else 0.0


def needed_products(launch: Launch, warps: int) -> float:
    """Tensor-core instructions of a warp that queries, keys and values of a tile need."""
    sides = [argument(launch, name) for name in ("ROWS", "TILE", "DIM_PAD")]
    return 2 * math.prod(sides) / (16 * 8 * 16) / warps


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)).replace("torch.", ""))
def test_kernels_compile_for_gpus_and_fit_them(
    shape: Shape, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in launched(monkeypatch, shape):
        name = launch[0].fn.__name__
        compiled = compile_for(shape.capability, launch)
        assert f"sm_{shape.capability}" in compiled.asm["ptx"]
        assert compiled.metadata.shared <= SHARED
        if version() < FAST:
            continue
        used, spilled = registers_and_spills(compiled, shape.capability, tmp_path / "code.ptx")
        if shape.dtype in HALF:
            assert spilled <= (0 if shape.pool is None else SPILLED), name
        warps, file = compiled.metadata.num_warps, tmp_path / "cubin"
        if name == "_decode" and (least := least_bytes(shape)):
            buffers = re.findall(r"memdesc<(\d)x\d+x\d+x[bfi]", compiled.asm["ttgir"])
            assert "2" in buffers
            assert bytes_per_clock(shape, launch, loop(compiled, file), warps) >= least
        if name == "_prefill" and shape.dtype in HALF and shape.dim in (64, 128):
            products = sum("HMMA" in each for each in loop(compiled, file))
            assert products == needed_products(launch, warps) or shape.capability == 90
        if name == "_prefill" and shape.dtype in HALF and shape.dim <= 64:
            threads = 32 * warps
            assert 2 * threads * used <= REGISTERS
            assert 2 * (compiled.metadata.shared + 1024) <= SHARED_OF_ALL or shape.capability == 90


@pytest.mark.parametrize("capability", [80, 90])
def test_what_enlarges_scales_compiles_for_gpus(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from experiment.engine.cuda import triton_rescale

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches: list[tuple[Any, tuple[Any, ...], dict[str, int]]] = []
    monkeypatch.setattr(triton_rescale, "_rescale", Recorder(triton_rescale._rescale, launches))
    inputs: Any = SimpleNamespace(live=None, touched=(torch.tensor([2, 0]), None))
    scales = torch.ones(2, 2, 8)
    triton_rescale.rescale(torch.zeros(2, 3, 8, 16, 64, dtype=torch.int8), inputs, scales, scales)
    assert len(launches) == 1
    compiled = compile_for(capability, launches[0])
    assert f"sm_{capability}" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED
