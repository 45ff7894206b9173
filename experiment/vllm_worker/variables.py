"""Environment variables of vLLM that the arm sets or removes."""

from __future__ import annotations

import os

from experiment.machine.thread_record import without_paths

# Required; set before vLLM is imported.
SET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # EngineCore in our process: we step it
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit our pipe
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}
# Defaults: the threads of the other arms, without binding.
SET_IF_ABSENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
# It would override the budget.
UNSET = ("VLLM_CPU_KVCACHE_SPACE",)
_SHOWN = ("VLLM_", "OMP_", "GOMP_", "KMP_", "MKL_", "LD_PRELOAD")


def prepare_variables(device: str) -> None:
    """Set and remove the variables that vLLM reads on import."""
    os.environ.update(SET)
    if device == "cpu":  # a GPU build of vLLM must fail rather than use one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name, value in SET_IF_ABSENT.items():
        os.environ.setdefault(name, value)
    for name in UNSET:
        os.environ.pop(name, None)


def recorded_variables() -> dict[str, str]:
    """Variables of vLLM and of thread pools for the record, without secrets."""
    return {
        name: without_paths(name, value)
        for name, value in sorted(os.environ.items())
        if name.startswith(_SHOWN) and not name.endswith(("_KEY", "_TOKEN"))
    }
