"""vLLM itself when everything above it is killed: none of its processes stays, nor what it shared.

`make vllm` first, then `make vllm-test`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from real_parts import is_gone
from sweeps import full
from vllm_runs import tiny_model

from experiment.events import ArmStarted, Event, Step
from experiment.process.process_tree import end_processes
from experiment.record.log import Record, read_record
from experiment.text.errors import UserError

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
SHM = "/dev/shm/"
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Where the program puts temporary files, in whose path vLLM's sockets have room."""
    with tempfile.TemporaryDirectory(prefix="tmp-") as made:
        yield Path(made)


@pytest.fixture
def program(
    real_vllm: str, model: Path, directory: Path, tmp_path: Path, temporary: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A run of vLLM alone, two requests at a time of many: it has a long middle."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"Number {n}"}) + "\n" for n in range(200)]
    prompts.write_text("".join(lines), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_experiment.py"), "--yes", "--quiet", "--arms", "vllm",
         "--device", "cpu", "--threads", "1", "--vllm-python", real_vllm, "--model", str(model),
         "--max-length", "256", "--block-size", "32", "--max-new-tokens", "200",
         "--set", "vllm.enforce_eager=true", "--set", "workload.ignore_eos=true",
         "--set", "engine.max_num_seqs=2", "--prompts", str(prompts), "--out", str(directory)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    )  # fmt: skip
    yield process
    left = [] if process.poll() is not None else psutil.Process(process.pid).children(True)
    process.kill()
    process.wait()
    end_processes(left)


def record_of(directory: Path) -> Record | None:
    try:
        return read_record(directory)
    except UserError:
        return None


def seen(directory: Path, kind: type[Event], arm: str = "vllm") -> list[Event]:
    record = record_of(directory)
    return [] if record is None else [e for e in record.of(kind) if getattr(e, "arm", "") == arm]


def shared_by(pid: int) -> set[Path]:
    """Shared memory that a process has mapped: other tests have some of their own meanwhile."""
    with contextlib.suppress(OSError):  # another system, or it has just ended
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
        parts = [line.partition(SHM)[1:] for line in lines]
        return {Path(SHM + name) for place, name in parts if place and "(deleted)" not in name}
    return set()


def generating(directory: Path, _: psutil.Process) -> bool:
    return len(seen(directory, Step)) > 3


def loading(directory: Path, program: psutil.Process) -> bool:
    """Its worker is there and has said nothing: its imports take seconds."""
    arms = [event.pid for event in seen(directory, ArmStarted) if isinstance(event, ArmStarted)]
    below = program.children(recursive=True)
    return bool(arms) and any("spawn_main" in words_of(process) for process in below)


def words_of(process: psutil.Process) -> str:
    """What it was started with; nothing where it has just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def parent_of(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.ppid()
    return None


@full
@pytest.mark.parametrize("when", [loading, generating])
@pytest.mark.parametrize("whom", ["the program", "the arm"])
def test_none_of_its_processes_outlives_who_is_killed_above_them(
    whom: str, when: Callable[[Path, psutil.Process], bool],
    program: subprocess.Popen[bytes], directory: Path, temporary: Path,
) -> None:  # fmt: skip
    me = psutil.Process(program.pid)
    deadline = time.monotonic() + DEADLINE_S
    while not when(directory, me):
        assert program.poll() is None, "it has ended; what it said stands above"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (arm,) = (e.pid for e in seen(directory, ArmStarted) if isinstance(e, ArmStarted))
    below = me.children(recursive=True)
    assert arm in map(parent_of, below)
    shared = {path for process in below for path in shared_by(process.pid)}
    assert list(temporary.glob("pagedkv-*"))
    os.kill(program.pid if whom == "the program" else arm, signal.SIGKILL)
    assert program.wait(DEADLINE_S) == (-signal.SIGKILL if whom == "the program" else 3)
    assert [process for process in below if not is_gone(process.pid)] == []
    record = record_of(directory)
    assert record is not None
    assert record.damaged_lines == 0
    while [*temporary.iterdir(), *filter(Path.exists, shared)] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [path for path in shared if path.exists()] == []
    assert list(temporary.iterdir()) == []
