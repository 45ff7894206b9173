"""The cause of a failure, found in the log where the exception only points there."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiment.process.wire import is_out_of_memory
from experiment.vllm_worker.failures import explain, root_cause

# Lines as vLLM 0.32 writes them.
LOG = """\
(Worker pid=7) INFO 11-21 09:25:42 [cpu_worker.py:260] Explicitly set (0.04/8.21) GiB
(Worker pid=7) ERROR 11-21 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=7) ERROR 11-21 [multiproc_executor.py:1063] torch.OutOfMemoryError: CUDA out of memory.
Exception: WorkerProc initialization failed due to an exception in a background process. See stack \
trace for root cause.
"""


def test_the_first_error_that_says_something() -> None:
    assert root_cause(LOG) == "OutOfMemoryError: CUDA out of memory."
    assert root_cause("all is well\n") is None


def test_an_exception_that_points_to_the_log_is_explained_by_it(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(LOG, encoding="utf-8")
    pointing = Exception("WorkerProc initialization failed. See stack trace for root cause.")
    assert explain(pointing, log) == "OutOfMemoryError: CUDA out of memory."
    assert explain(ValueError("too long"), log) == "ValueError: too long"
    told = explain(pointing, tmp_path / "none")
    assert told is not None
    assert told.startswith("Exception: WorkerProc")


def test_a_log_of_nothing_but_pointers_tells_of_a_process_that_went_away(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("RuntimeError: cancelled\nException: check the stack trace above\n", "utf-8")
    assert explain(RuntimeError("cancelled"), log) is None


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes", True),
        ("AcceleratorError: CUDA error: out of memory", True),  # pinned memory
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("RuntimeError: Triton Error [CUDA]: out of memory", True),
        (
            "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes",
            True,
        ),
        ("RuntimeError: std::bad_alloc", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("OutOfResources: out of resource: shared memory, Required: 131072", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("ValueError: To serve at least one request, 0.04 GiB KV cache is needed", False),
    ],
)
def test_running_out_of_memory_is_known_by_its_words(text: str, memory: bool) -> None:
    assert is_out_of_memory(text) is memory
