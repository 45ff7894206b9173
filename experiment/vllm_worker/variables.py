"""Environment variables that steer vLLM: those that the arm sets, and those it must not find."""

from __future__ import annotations

import os

from experiment.machine.thread_record import without_places

# Before vLLM is imported; the arm cannot do without.
SET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # EngineCore in our process: we step it
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit our pipe
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
# Unless the person says otherwise: as many threads as the other arms have, on any core.
SET_IF_ABSENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# It would override the budget.
UNSET = ("VLLM_CPU_KVCACHE_SPACE",)
_SHOWN = ("VLLM_", "OMP_", "GOMP_", "KMP_", "MKL_", "LD_PRELOAD")


def prepare_variables(device: str) -> None:
    """Set and remove what vLLM reads when it is imported."""
    os.environ.update(SET)
    if device == "cpu":  # a vLLM that is built for GPUs shall fail rather than take one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name, value in SET_IF_ABSENT.items():
        os.environ.setdefault(name, value)
    for name in UNSET:
        os.environ.pop(name, None)


def recorded_variables() -> dict[str, str]:
    """Every variable of vLLM's and of the thread pools, for the record; no secrets."""
    return {
        name: without_places(name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(_SHOWN) and not name.endswith(("_KEY", "_TOKEN"))
    }
