"""What NVML says of a real GPU and of us, and a whole run on it, channel beside channel.

``pagedkv selfcheck`` holds each channel of a GPU to known amounts of memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiment.analysis.conclusions import evaluate
from experiment.engine.cuda.triton_support import reason_against
from experiment.events import DecodeGraphsReady, DecodeGraphsUsed, Event, KernelChosen, Notice
from experiment.machine.environment import NvmlFacts
from experiment.memory.cuda_history import cuda_history
from experiment.memory.gpu_probe import probe_gpus
from experiment.memory.nvml import NvmlDevice, NvmlError, open_nvml
from experiment.record.log import read_record

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]
ROOT = Path(__file__).parent.parent.parent
TOLERANCE = 0.02


@pytest.fixture(scope="module")
def facts() -> NvmlFacts:
    return probe_gpus(torch)[1]


@pytest.fixture
def device(facts: NvmlFacts) -> Iterator[NvmlDevice]:
    if facts.reason is not None:
        pytest.skip(f"NVML does not work here: {facts.reason.key}")
    torch.zeros(1, device="cuda")  # from here on NVML lists this process
    nvml = open_nvml()
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    try:
        yield nvml.device(uuid)
    except NvmlError as error:
        pytest.skip(f"NVML does not show the device: {error.reason.key}")
    finally:
        nvml.close()


def test_utilisation_is_a_share_or_a_reason(device: NvmlDevice) -> None:
    try:
        busy, memory = device.utilisation()
    except NvmlError as error:
        if error.reason.key != "memory.nvml_not_supported":
            raise
    else:
        assert 0 <= busy <= 1
        assert 0 <= memory <= 1


def test_this_process_is_no_stranger(device: NvmlDevice, facts: NvmlFacts) -> None:
    if facts.process_reason is not None:
        pytest.skip(f"NVML does not list this process: {facts.process_reason.key}")
    assert os.getpid() not in device.foreign_pids([os.getpid()])
    assert os.getpid() in device.foreign_pids([])


# GPT-2's shape in half precision: 1,024 blocks of 16 slots of 36 KiB are 576 MiB.
WHOLE_RUN = """
[model]
name = "gpt2"
[cache]
budget = "576 MiB"
max_length = 512
[workload]
max_new_tokens = 20
[run]
device = "cuda"
arms = ["contiguous.batch", "paged"]
"""


def test_a_whole_run_on_the_gpu_is_reconciled_by_channels_that_are_independent(
    tmp_path: Path,
) -> None:
    """The product's own path: arms in processes, monitor, ladder, reconciliation."""
    config = tmp_path / "gpu.toml"
    config.write_text(WHOLE_RUN, encoding="utf-8")
    words = ["--config", str(config), "--yes", "--lang", "en", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), *words],
        capture_output=True, text=True, encoding="utf-8", timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(tmp_path / "run")
    results = evaluate(record)
    if reason_against(torch.device("cuda")) is None:
        assert {event.kernel for event in record.of(KernelChosen)} == {"triton"}
        [graphs] = record.of(DecodeGraphsReady)
        assert graphs.sizes == [1, 2, 4], graphs.reason
        assert [event.steps > 0 for event in record.of(DecodeGraphsUsed)] == [True]
    usable = {c["channel"] for c in (results.environment or {})["channels"] if c["usable"]}
    for arm in results.arms:
        found = arm.reconciliation
        assert arm.status == "finished"
        assert found is not None
        assert found.agree is True, found.text
        judged = {row.channel: row.difference for row in found.rows if row.agrees is not None}
        expected = {"tensors", "torch.allocated", "torch.reserved"} | ({"nvml.process"} & usable)
        if arm.watch.foreign_before == arm.watch.foreign_after == 0:
            expected |= {"cuda.mem_get_info"} | ({"nvml.device"} & usable)
        assert expected <= judged.keys()
        if arm.arm == "paged":  # one tensor; the other cache is many, in pieces of 20 MiB
            assert all(abs(off or 0) <= TOLERANCE for off in judged.values()), judged
        parts = {part.part: part.bytes for part in found.parts}
        assert all(parts[name] is not None for name in ("weights", "kv", "work", "slack"))
        assert ("nvml.process" in usable) == (parts["runtime"] is not None)
        assert arm.watch.gpu_share is not None or arm.watch.gpu_reason is not None


class FakeHistory:
    """Stands in for the functions of torch.cuda.memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.error = error
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", self.record)
        monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", self.dump)

    def record(self, enabled: str | None = "all", max_entries: int = 0) -> None:
        self.calls.append(("record", enabled))

    def dump(self, path: str) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append(("dump", path))


def test_a_snapshot_is_saved_also_of_an_arm_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeHistory(monkeypatch)
    path = tmp_path / "paged.cuda_history.pickle"
    with pytest.raises(MemoryError), cuda_history(path, lambda event: None):
        raise MemoryError
    assert fake.calls == [("record", "all"), ("dump", str(path)), ("record", None)]


def test_a_snapshot_that_cannot_be_saved_is_a_notice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeHistory(monkeypatch, OSError("disk full"))
    events: list[Event] = []
    with cuda_history(tmp_path / "x.pickle", events.append):
        pass
    (notice,) = events
    assert isinstance(notice, Notice)
    assert notice.text.key == "usage.history_failed"
    assert fake.calls[-1] == ("record", None)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_torch_writes_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    with cuda_history(path, lambda event: None):
        torch.zeros(2**20, device="cuda")
    assert path.stat().st_size > 0
