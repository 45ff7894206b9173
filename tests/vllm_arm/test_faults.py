"""Whatever becomes of the worker: a row with a reason, and nobody left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import pytest
from real_parts import run_arms
from vllm_runs import config, invented, pretender, result

from experiment.arms.launch import VLLM_PYTHON
from experiment.machine.environment import Environment
from experiment.text.messages import Message, message

# Loads nothing, starts a process of its own below it, and sits there.
HANGS = """
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
time.sleep(600)
"""
SESSION = """
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
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
    """Processes that the pretender started, or is."""
    marks = (str(path), "time.sleep(600)")
    found = []
    for process in psutil.process_iter(["cmdline", "pid"]):
        line = " ".join(process.info["cmdline"] or ())
        if process.info["pid"] != os.getpid() and any(mark in line for mark in marks):
            found.append(process)
    return found


def test_without_vllm_the_arm_is_skipped_and_says_how_to_get_it(
    directory: Path, tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiment.arms.launch.VLLM_ENVIRONMENT", "nowhere")
    arm = result(run_arms(directory, config(), environment, invented(tmp_path)))
    assert (arm.status, arm.reason) == ("skipped", message("vllm.missing"))


def test_an_interpreter_without_vllm_is_named(
    directory: Path, tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[]'\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setenv(VLLM_PYTHON, str(python))
    arm = result(run_arms(directory, config(), environment, invented(tmp_path)))
    assert (arm.status, arm.reason) == ("skipped", message("vllm.not_there", path=str(python)))


def test_a_budget_without_room_for_the_null_block_is_refused_before_anything_starts(
    directory: Path, tmp_path: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = pretender(tmp_path / "python", "raise SystemExit('it was started')")
    monkeypatch.setenv(VLLM_PYTHON, str(python))
    prepared = invented(tmp_path)
    four = prepared.workload.model_copy(update={"budget_bytes": 4 * 32 * 1024})
    small = type(prepared)(prepared.directory, prepared.model, four)
    record = run_arms(directory, config(), environment, small)
    arm = result(record)
    needed = 5 * 32 * 1024  # four blocks of 32 slots for 128 tokens, and the null block
    reason = message("error.vllm_budget_small", budget=four.budget_bytes, needed=needed)
    assert (arm.status, arm.reason) == ("failed", reason)
    assert not list(directory.glob("logs/vllm.log"))
