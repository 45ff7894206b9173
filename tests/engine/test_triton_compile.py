"""The Triton kernels compiled for GPUs that are not here: what is launched, exactly as launched."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton (Linux on x86-64)"
)
# Shared memory that a program may have on the smallest GPUs that are supported.
SHARED = 99 << 10
TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8",
    torch.int32: "i32", torch.int64: "i64",
}  # fmt: skip


class Recorder:
    """Stands in for a kernel and remembers how it was launched."""

    def __init__(self, kernel: Any, launches: list[tuple[Any, tuple[Any, ...], dict[str, int]]]):
        self.kernel = kernel
        self.launches = launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert all(side > 0 for side in grid)
        return lambda *args, **options: self.launches.append((self.kernel, args, options))


def launched(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, group: int, dim: int
) -> list[tuple[Any, tuple[Any, ...], dict[str, int]]]:
    """Everything that a run launches for one layer of this shape."""
    from experiment.engine import triton_decode, triton_prefill, triton_write
    from experiment.engine.triton_kernel import warm_up

    found: list[tuple[Any, tuple[Any, ...], dict[str, int]]] = []
    for module, names in (
        (triton_decode, ("_decode", "_combine")),
        (triton_prefill, ("_prefill",)),
        (triton_write, ("_write",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, Recorder(getattr(module, name), found))
    warm_up(torch.zeros(2, 3, 8, 16, dim, dtype=dtype), 8 * group, dtype)
    return found


def compile_for(
    capability: int, kernel: Any, args: tuple[Any, ...], options: dict[str, int]
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

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


@pytest.mark.parametrize(
    ("dtype", "group", "dim", "capability"),
    [(torch.float16, 1, 64, 90), (torch.bfloat16, 4, 128, 80)],
)
def test_kernels_compile_for_gpus_and_fit_them(
    dtype: torch.dtype,
    group: int,
    dim: int,
    capability: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = launched(monkeypatch, dtype, group, dim)
    names = [kernel.fn.__name__ for kernel, _, _ in launches]
    # One split alone, then several with what combines them.
    assert names == ["_decode", "_prefill", "_decode", "_combine", "_write"]
    for kernel, args, options in launches:
        compiled = compile_for(capability, kernel, args, options)
        assert compiled.asm["cubin"]
        assert f"sm_{capability}" in compiled.asm["ptx"]
        assert compiled.metadata.shared <= SHARED


@pytest.mark.parametrize("capability", [80, 90])
def test_what_enlarges_scales_compiles_for_gpus(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from experiment.engine import triton_rescale

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches: list[tuple[Any, tuple[Any, ...], dict[str, int]]] = []
    monkeypatch.setattr(triton_rescale, "_rescale", Recorder(triton_rescale._rescale, launches))
    inputs: Any = SimpleNamespace(live=None, touched=(torch.tensor([2, 0]), None))
    scales = torch.ones(2, 2, 8)
    triton_rescale.rescale(torch.zeros(2, 3, 8, 16, 64, dtype=torch.int8), inputs, scales, scales)
    [(kernel, args, options)] = launches
    compiled = compile_for(capability, kernel, args, options)
    assert f"sm_{capability}" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED
