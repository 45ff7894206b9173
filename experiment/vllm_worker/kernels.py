"""Launch a small kernel of torch and one of vLLM: the last step of ``make vllm``.

An import does not reveal an old driver, or a GPU without kernels in a build.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from vllm import __version__

from experiment.machine.toolchain import minimum_driver

# torch's errors without a GPU, as when an image is built.
_NO_GPU = ("no NVIDIA driver", "No CUDA GPUs are available")
_ADVICE = {
    "too old": "update the driver",
    "no kernel image": "VLLM_VERSION chooses another version, which may have kernels for this GPU",
}


def main() -> int:
    """Print a report; return 0, also if no GPU is visible, or 2 if a kernel fails."""
    cuda = torch.version.cuda
    driver = minimum_driver(cuda)
    build = f"torch {torch.__version__}"
    if driver is not None:
        print(f"{build} (CUDA {cuda}) needs NVIDIA driver {driver} or newer")
    kernels: dict[str, Callable[[str], None]] = {
        build: _run_torch,
        f"vLLM {__version__}": _run_vllm,
    }
    for name, run in kernels.items():
        try:
            run("cuda" if cuda else "cpu")
        except Exception as error:  # no GPU, a full one, or a missing library, operator or kernel
            return _explain(name, error)
    print(f"a kernel of {' and one of '.join(kernels)} ran")
    return 0


def _run_torch(device: str) -> None:
    torch.ones(1, device=device).sum().item()


def _run_vllm(device: str) -> None:
    """RMSNorm of a constant is the weight."""
    from vllm._custom_ops import rms_norm

    given = torch.full((2, 64), 2.0, device=device)
    found = torch.zeros_like(given)  # never the last result
    rms_norm(found, given, torch.full((64,), 3.0, device=device), 1e-6)
    if not torch.allclose(found, torch.full_like(found, 3.0), atol=1e-3):
        raise RuntimeError(f"RMSNorm gave {found[0, 0].item()} instead of 3")


def _explain(name: str, error: Exception) -> int:
    text = str(error)
    if any(part in text for part in _NO_GPU):
        print("no GPU is visible: make vllm on the GPU machine will test kernels")
        return 0
    first = text.partition("\n")[0][:200]
    print(f"a first kernel of {name} failed: {type(error).__name__}: {first}")
    for part, advice in _ADVICE.items():
        if part in text:
            print(advice)
    return 2


if __name__ == "__main__":
    sys.exit(main())
