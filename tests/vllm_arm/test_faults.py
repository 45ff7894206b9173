"""Whatever becomes of the worker: a row with a reason, and nobody left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from arms_here import Gathered, run_here
from real_parts import run_arms
from vllm_runs import config, invented, pretender, result

from experiment.analysis.conclusions import evaluate
from experiment.arms.launch import VLLM_PYTHON
from experiment.children.prepare import main as prepare
from experiment.config.schema import Config
from experiment.events import ModelDirectory, ModelPrepared, Notice, WorkloadReady
from experiment.machine.environment import Environment
from experiment.process.wire import is_out_of_memory
from experiment.text.messages import Message, message
from experiment.vllm_worker.failures import explain, root_cause
from experiment.workload.prepared import Prepared

# Loads nothing, starts a process of its own below it, and sits there.
HANGS = """
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', __file__])
time.sleep(600)
"""
SESSION = """
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', __file__])
sys.exit(3)
"""
RUBBISH = """
sys.stdout.buffer.write(b'\\x00\\xff rubbish\\n{"event": "nonsense"}\\n[1, 2]\\n')
sys.stdout.buffer.write(b'x' * 3_000_000 + b'\\n')
sys.stdout.flush()
print('{"event": "arm_failed", "arm": "vllm", "reason": {"key": "failure.no_end"}}')
sys.exit(3)
"""
MEMORY = """
sys.path[:0] = os.environ['PYTHONPATH'].split(os.pathsep)
sys.path[:0] = PACKAGES
from experiment.process.wire import Wire, serve
def main(wire, task):
    raise MemoryError('CUDA out of memory')
sys.exit(serve('vllm', main))
"""


def packages() -> list[str]:
    """Where pydantic is."""
    import pydantic

    return [str(Path(pydantic.__file__).parent.parent)]


@pytest.mark.parametrize(
    ("body", "limit_s", "reason"),
    [
        (HANGS, 3, message("failure.timeout", seconds=3.0)),
        (SESSION, 60, message("failure.exit", code=3)),
        (RUBBISH, 60, message("failure.no_end")),
        (MEMORY, 60, message("failure.out_of_memory")),
    ],
    ids=["hangs", "leaves a child", "rubbish", "memory"],
)
def test_every_end_is_a_row_with_a_reason(
    body: str, limit_s: float, reason: Message, directory: Path, tmp_path: Path,
    environment: Environment, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    python = pretender(tmp_path / "python", body.replace("PACKAGES", repr(packages())))
    monkeypatch.setenv(VLLM_PYTHON, str(python))
    run = {"arm_timeout_s": limit_s}
    begin = time.monotonic()
    arm = result(run_arms(directory, config(run=run), environment, invented(tmp_path)))
    assert (arm.status, arm.reason) == ("failed", reason)
    assert time.monotonic() - begin < limit_s + 60
    assert not ours(tmp_path)


def ours(path: Path) -> list[psutil.Process]:
    """Processes that the pretender started, or is: all of them name its file."""
    me = os.getpid()
    return [
        process
        for process in psutil.process_iter(["cmdline", "pid"])
        if process.info["pid"] != me and str(path) in " ".join(process.info["cmdline"] or ())
    ]


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


def test_a_vllm_that_is_skipped_changes_nothing_for_the_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention on the CPU is not compiled for tiny-gpt2's heads of 16."""
    monkeypatch.setenv(VLLM_PYTHON, str(pretender(tmp_path / "python", "")))
    given = Config.model_validate(
        {
            "model": {"name": "tiny-gpt2", "offline": True},
            "workload": {"max_new_tokens": 2},
            "cache": {"max_length": 512},
            "engine": {"kernel": "torch", "packed_weights": False},
            "run": {"arms": ["paged", "vllm"], "device": "cpu", "threads": 1},
        }
    )
    task = {"config": given.model_dump(mode="json"), "device": "cpu", "prompts": ["Hello"]}
    wire = Gathered()
    prepare(wire, {**task, "arms": given.arm_names})  # type: ignore[arg-type]
    found: dict[type, Any] = {type(event): event for event in wire.events}
    assert Notice not in found  # of another block size for every arm
    made = Prepared(found[ModelDirectory].path, found[ModelPrepared], found[WorkloadReady])
    paged, vllm = evaluate(run_here(directory, given, made)).arms
    assert vllm.reason is not None
    assert vllm.reason.key == "skip.vllm_head_size"
    assert (paged.status, paged.block_size) == ("finished", 16)
    assert paged.budget_bytes == 512 * made.model.slot_bytes  # no room for a null block
