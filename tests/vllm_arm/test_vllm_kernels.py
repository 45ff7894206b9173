"""The end of `make vllm`: small kernels, and the driver that they need."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

NAME = "experiment.vllm_worker.kernels"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, beside a vLLM that computes RMSNorm of a constant."""
    vllm, operators = ModuleType("vllm"), ModuleType("vllm._custom_ops")
    vllm.__version__ = "0.32.0"  # type: ignore[attr-defined]
    operators.rms_norm = lambda out, given, weight, epsilon: out.copy_(weight)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", operators)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def on_gpu(monkeypatch: pytest.MonkeyPatch, kernels: Any, error: str | None = None) -> None:
    """A torch for CUDA, whose first kernel fails with ``error``."""

    def run(device: str) -> None:
        assert device == "cuda"
        if error:
            raise RuntimeError(error)

    torch = SimpleNamespace(__version__="2.13.0+cu130", version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setattr(kernels, "torch", torch)
    monkeypatch.setattr(kernels, "_run_torch", run)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("The NVIDIA driver on your system is too old (found version 12020).", 2),
        ("CUDA unknown error", 2),
        ("Found no NVIDIA driver on your system.", 0),
        ("No CUDA GPUs are available", 0),
    ],
)
def test_the_driver_is_named_and_an_image_is_built_without_a_gpu(
    error: str,
    code: int,
    kernels: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    on_gpu(monkeypatch, kernels, error)
    assert kernels.main() == code
    assert "580" in capsys.readouterr().out


def test_a_kernel_that_fails_is_named(
    kernels: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(device: str) -> None:
        assert device == "cuda"
        raise RuntimeError("CUDA error: no kernel image is available\nCompile with")

    on_gpu(monkeypatch, kernels)
    monkeypatch.setattr(kernels, "_run_vllm", fail)
    assert kernels.main() == 2
    out = capsys.readouterr().out
    assert "vLLM 0.32.0" in out
    assert "VLLM_VERSION" in out
    assert "Compile with" not in out


def test_a_wrong_result_fails(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.main() == 0
    monkeypatch.setattr(sys.modules["vllm._custom_ops"], "rms_norm", lambda *_: None)
    assert kernels.main() == 2
