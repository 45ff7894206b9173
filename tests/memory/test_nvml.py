"""Every failure of NVML has its own reason, and none reads as 0."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from made_up_machine import UUID, cuda_environment
from memory_fakes import MIB, FakeNvml, FakeTorch, entry

from experiment.memory.devices import GpuReader
from experiment.memory.figure import MemoryFigure, UnreadableError
from experiment.memory.gpu_probe import PROBE_BYTES, device_reason, probe_gpus, process_reason
from experiment.memory.nvml import NvmlDevice, open_nvml
from experiment.text.messages import message

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
MEMORY, MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"


def device(fake: FakeNvml) -> NvmlDevice:
    return open_nvml(fake).device(UUID)


def missing(key: str) -> MemoryFigure:
    return MemoryFigure(None, message(key))


def reason(read: Callable[[], object]) -> str:
    with pytest.raises(UnreadableError) as caught:
        read()
    return caught.value.reason.key


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (12, "memory.nvml_no_library"),
        (9, "memory.nvml_no_driver"),
        (4, "memory.nvml_no_permission"),
        (18, "memory.nvml_driver_mismatch"),
    ],
)
def test_a_failed_start_says_why(code: int, key: str) -> None:
    assert reason(lambda: open_nvml(FakeNvml({"nvmlInit": code}))) == key


def test_without_the_binding_nvml_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert reason(open_nvml) == "memory.nvml_not_installed"


@pytest.mark.parametrize(
    ("errors", "reserved", "key"),
    [
        ({}, False, None),
        # A driver without the second version of the call counts what it reserves for itself, too.
        ({MEMORY_V2: 13}, True, None),
        ({MEMORY_V2: 25}, True, None),
        ({MEMORY_V2: 13, MEMORY: 13}, False, "memory.nvml_driver_old"),
    ],
)
def test_used_memory_of_a_device_comes_with_its_total(
    errors: dict[str, int | list[int]], reserved: bool, key: str | None
) -> None:
    fake = FakeNvml(errors)
    if key is None:
        used = fake.used + (fake.reserved if reserved else 0)
        assert device(fake).memory() == MemoryFigure(used, total_bytes=fake.total)
    else:
        assert reason(device(fake).memory) == key


@pytest.mark.parametrize(
    ("code", "key"),
    [
        (3, "memory.nvml_not_supported"),
        (4, "memory.nvml_no_permission"),
        (15, "memory.nvml_gpu_lost"),
        (16, "memory.nvml_gpu_reset"),
    ],
)
def test_a_refused_figure_is_none(code: int, key: str) -> None:
    fake = FakeNvml({MEMORY_V2: code, COMPUTE: code})
    assert reason(device(fake).memory) == key
    assert reason(lambda: device(fake).process_bytes([1])) == key


TEN, ONE = 10 * MIB, MIB


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ({"compute": [entry(1, TEN), entry(2, ONE), entry(9, TEN)]}, TEN + ONE),
        ({"compute": [entry(1, TEN)], "graphics": [entry(1, TEN)],
          "mps": [entry(1, TEN), entry(2, ONE)]}, TEN + ONE),
        ({"compute": [entry(1, TEN, instance=1), entry(1, ONE, instance=2)]}, TEN + ONE),
        ({"compute": [entry(1, None)], "graphics": [entry(1, TEN)]}, TEN),
        ({"compute": [entry(1, None)]}, "memory.nvml_no_value"),
        ({"compute": [entry(1, 0)]}, "memory.nvml_no_value"),
        ({"compute": [entry(1, TEN), entry(2, None)]}, "memory.nvml_no_value"),
        ({"compute": [entry(70001, TEN)]}, "memory.nvml_not_listed"),
    ],
    ids=["the tree's alone", "in several lists", "on several slices", "in one list of two",
         "no figure", "a figure of 0", "one of two unknown", "not listed"],
)  # fmt: skip
def test_the_memory_of_a_process_tree(lists: dict[str, list[Any]], expected: int | str) -> None:
    fake = FakeNvml()
    for name, entries in lists.items():
        setattr(fake, name, entries)
    if isinstance(expected, int):
        assert device(fake).process_bytes([1, 2, 3]).bytes == expected
    else:
        assert reason(lambda: device(fake).process_bytes([1, 2, 3])) == expected
    assert device(fake).foreign_pids([1, 2, 3]) == {e.pid for e in fake.compute} - {1, 2}


def test_driver_too_old_for_the_third_version_of_the_lists() -> None:
    fake = FakeNvml({COMPUTE: 13, GRAPHICS: 13, MPS: 13})
    fake.compute = [entry(1, TEN)]
    assert device(fake).process_bytes([1]).bytes == TEN


def test_a_device_that_does_not_answer_hides_no_other() -> None:
    fake = FakeNvml({"nvmlDeviceGetHandleByIndex": [15]})  # the first one is lost
    fake.uuids = {"GPU-0", "GPU-1"}
    assert [each.uuid for each in open_nvml(fake).devices()] == ["GPU-1"]


def test_figures_of_an_arm_on_two_gpus_are_added() -> None:
    environment = cuda_environment()
    gpus = [environment.gpus[0].model_copy(update={"uuid": f"GPU-{place}"}) for place in range(3)]
    environment = environment.model_copy(update={"gpus": tuple(gpus)})
    fake = FakeNvml()
    fake.uuids = {"GPU-0", "GPU-1", "GPU-2"}
    lists = {"GPU-0": [entry(1, TEN), entry(9, TEN)], "GPU-1": [entry(2, 3 * TEN)], "GPU-2": []}
    fake.answers[COMPUTE] = lambda handle: lists[handle]
    reader = GpuReader(environment, fake, gpus=2)
    assert reader.process_bytes([1, 2]).bytes == 4 * TEN
    assert reader.memory().bytes == 2 * fake.used
    assert reader.memory().total_bytes == 2 * fake.total
    assert reader.foreign_pids([1, 2]) == {9}
    # A rank that does not use its GPU yet.
    assert reason(lambda: reader.process_bytes([1])) == "memory.nvml_not_listed"
    assert GpuReader(environment, fake).process_bytes([1]).bytes == TEN


def test_a_list_that_grew_meanwhile_is_read_again_once() -> None:
    fake = FakeNvml({COMPUTE: [7]})
    fake.compute = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB
    fake = FakeNvml({COMPUTE: [7, 7]})
    assert reason(lambda: device(fake).process_bytes([1])) == "memory.nvml_list_changing"
    assert fake.calls.count(COMPUTE) == 2


def test_the_binding_itself_on_such_a_driver_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = pytest.importorskip("pynvml")

    def absent(name: str) -> None:
        raise binding.NVMLError(binding.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(binding, "_nvmlGetFunctionPointer", absent)
    gpu = NvmlDevice(binding, None, f"GPU-{UUID}")
    assert reason(lambda: gpu.process_bytes([1])) == "memory.nvml_driver_old"


def test_only_the_list_of_compute_processes_is_needed() -> None:
    fake = FakeNvml({GRAPHICS: 3, MPS: 3})
    fake.compute = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB
    fake.errors = {GRAPHICS: 15}
    assert reason(lambda: device(fake).process_bytes([1])) == "memory.nvml_gpu_lost"


def test_a_slice_is_found_by_the_uuid_that_torch_gives() -> None:
    fake = FakeNvml()
    fake.uuids = {f"MIG-{UUID}"}
    gpu = device(fake)
    assert gpu.uuid == f"MIG-{UUID}"
    assert gpu.is_slice
    assert gpu.mig_enabled() is True


@pytest.mark.parametrize(
    ("codes", "key"),
    [
        (4, "memory.nvml_no_permission"),
        (2, "memory.nvml_gpu_not_found"),
        ([], "memory.nvml_gpu_not_found"),
    ],
)
def test_a_gpu_that_cannot_be_opened_is_refused_with_the_reason(
    codes: int | list[int], key: str
) -> None:
    fake = FakeNvml({"nvmlDeviceGetHandleByUUID": codes})
    fake.uuids = set()
    assert reason(lambda: device(fake)) == key


@pytest.mark.parametrize(("code", "expected"), [(3, False), (4, None)])
def test_mig_mode_unknown_is_not_off(code: int, expected: bool | None) -> None:
    assert device(FakeNvml({"nvmlDeviceGetMigMode": code})).mig_enabled() is expected


@pytest.mark.parametrize(
    ("figure", "others", "driver", "key"),
    [
        (
            missing("memory.nvml_not_listed"),
            True,
            None,
            "memory.nvml_pid_namespace",
        ),
        (
            missing("memory.nvml_not_listed"),
            False,
            None,
            "memory.nvml_lists_nothing",
        ),
        (missing("memory.nvml_no_value"), True, None, "memory.nvml_no_value"),
        (MemoryFigure(PROBE_BYTES - 1), True, None, "memory.nvml_pid_namespace"),
        (MemoryFigure(PROBE_BYTES), True, "535.54.03", "memory.nvml_driver_wrong"),
        (MemoryFigure(PROBE_BYTES), True, "535.104.05", None),
    ],
)
def test_whether_nvml_sees_a_process_that_holds_memory(
    figure: MemoryFigure, others: bool, driver: str | None, key: str | None
) -> None:
    found = process_reason(figure, others, driver)
    assert (found.key if found else None) == key


def test_the_figure_of_a_whole_gpu_says_nothing_of_a_slice() -> None:
    whole = MemoryFigure(5 * MIB, total_bytes=80 * 1024 * MIB)
    found = device_reason(whole, torch_total=10 * 1024 * MIB)
    assert found is not None
    assert found.key == "memory.nvml_mig_parent"
    assert device_reason(whole, torch_total=79 * 1024 * MIB) is None


@pytest.mark.parametrize(
    ("pid", "errors", "full", "process", "whole"),
    [
        (os.getpid(), {}, False, None, None),
        (2**22 + 1, {}, False, "memory.nvml_pid_namespace", None),
        (os.getpid(), {"nvmlInit": 12}, False, None, "memory.nvml_no_library"),
        (os.getpid(), {}, True, None, "memory.sample_failed"),
    ],
    ids=["all works", "another namespace of pids", "no library", "a full GPU"],
)
def test_probe_of_the_gpu_that_torch_has(
    pid: int, errors: dict[str, int | list[int]], full: bool, process: str | None, whole: str | None
) -> None:
    fake = FakeNvml(errors)
    fake.compute = [entry(pid, 400 * MIB)]
    gpus, nvml = probe_gpus(FakeTorch(full=full), fake)
    assert [gpu.uuid for gpu in gpus] == [f"GPU-{UUID}"]
    found = (nvml.process_reason, nvml.reason, nvml.device_reason)
    assert [each and each.key for each in found] == [process, whole, None]
    assert gpus[0].mig is (None if whole == "memory.nvml_no_library" else False)


def test_probe_finds_a_gpu_that_torch_cannot_use() -> None:
    gpus, nvml = probe_gpus(None, FakeNvml())
    assert [(gpu.name, gpu.visible) for gpu in gpus] == [("Fake GPU", False)]
    assert nvml.reason is None
