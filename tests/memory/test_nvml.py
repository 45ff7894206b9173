"""Every failure of NVML has its own reason, and none reads as 0."""

from __future__ import annotations

import os
import sys

import pytest
from made_up_machine import UUID
from memory_fakes import MIB, FakeNvml, FakeTorch, entry

from experiment.memory.figure import MemoryFigure, missing
from experiment.memory.gpu_probe import PROBE_BYTES, device_reason, probe_gpus, process_reason
from experiment.memory.nvml import NvmlDevice, NvmlError, open_nvml

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
GRAPHICS = "nvmlDeviceGetGraphicsRunningProcesses"
MPS = "nvmlDeviceGetMPSComputeRunningProcesses"
MEMORY, MEMORY_V2 = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"


def device(fake: FakeNvml) -> NvmlDevice:
    return open_nvml(fake).device(UUID)


def reason(figure: MemoryFigure) -> str:
    assert figure.bytes is None
    assert figure.reason is not None
    return figure.reason.key


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
    with pytest.raises(NvmlError) as caught:
        open_nvml(FakeNvml({"nvmlInit": code}))
    assert caught.value.reason.key == key
    assert caught.value.code == code


def test_without_the_binding_nvml_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError) as caught:
        open_nvml()
    assert caught.value.reason.key == "memory.nvml_not_installed"


def test_used_memory_of_a_device_comes_with_its_total() -> None:
    fake = FakeNvml()
    assert device(fake).memory() == MemoryFigure(fake.used, total_bytes=fake.total)


@pytest.mark.parametrize("code", [13, 25])
def test_driver_too_old_for_the_second_version_of_the_memory_call(code: int) -> None:
    fake = FakeNvml({MEMORY_V2: code})
    assert device(fake).memory().bytes == fake.used + fake.reserved
    assert fake.calls[-2:] == [MEMORY_V2, MEMORY]


def test_both_versions_of_the_memory_call_missing() -> None:
    fake = FakeNvml({MEMORY_V2: 13, MEMORY: 13})
    assert reason(device(fake).memory()) == "memory.nvml_driver_old"


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
    assert reason(device(fake).memory()) == key
    assert reason(device(fake).process_bytes([1])) == key


def test_processes_of_the_tree_are_added_and_others_are_not() -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, 100 * MIB), entry(2, 20 * MIB), entry(9, 7 * MIB)]
    assert device(fake).process_bytes([1, 2, 3]).bytes == 120 * MIB
    assert device(fake).foreign_pids([1, 2, 3]) == {9}


def test_a_process_in_several_lists_counts_once() -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, 100 * MIB)]
    fake.graphics = [entry(1, 100 * MIB)]
    fake.mps = [entry(1, 100 * MIB), entry(2, 5 * MIB)]
    assert device(fake).process_bytes([1, 2]).bytes == 105 * MIB


def test_a_process_on_several_slices_adds_up() -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, 100 * MIB, instance=1), entry(1, 30 * MIB, instance=2)]
    assert device(fake).process_bytes([1]).bytes == 130 * MIB


@pytest.mark.parametrize("value", [None, 0])
def test_a_listed_process_without_a_figure(value: int | None) -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, value)]
    assert reason(device(fake).process_bytes([1])) == "memory.nvml_no_value"


def test_a_sum_that_lacks_one_process_is_none() -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, 100 * MIB), entry(2, None)]
    assert reason(device(fake).process_bytes([1, 2])) == "memory.nvml_no_value"
    assert device(fake).process_bytes([1]).bytes == 100 * MIB


def test_a_figure_in_one_list_helps_out_in_the_other() -> None:
    fake = FakeNvml()
    fake.compute = [entry(1, None)]
    fake.graphics = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB


def test_none_of_ours_listed() -> None:
    fake = FakeNvml()
    fake.compute = [entry(70001, 100 * MIB)]
    assert reason(device(fake).process_bytes([1, 2])) == "memory.nvml_not_listed"


def test_a_list_that_grew_meanwhile_is_read_again_once() -> None:
    fake = FakeNvml({COMPUTE: [7]})
    fake.compute = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB
    fake = FakeNvml({COMPUTE: [7, 7]})
    assert reason(device(fake).process_bytes([1])) == "memory.nvml_list_changing"
    assert fake.calls.count(COMPUTE) == 2


def test_driver_too_old_for_the_third_version_of_the_lists() -> None:
    fake = FakeNvml({COMPUTE: 13, GRAPHICS: 13, MPS: 13})
    fake.compute = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB


def test_the_binding_itself_on_such_a_driver_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = pytest.importorskip("pynvml")

    def absent(name: str) -> None:
        raise binding.NVMLError(binding.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(binding, "_nvmlGetFunctionPointer", absent)
    figure = NvmlDevice(binding, None, f"GPU-{UUID}").process_bytes([1])
    assert reason(figure) == "memory.nvml_driver_old"


def test_only_the_list_of_compute_processes_is_needed() -> None:
    fake = FakeNvml({GRAPHICS: 3, MPS: 3})
    fake.compute = [entry(1, 100 * MIB)]
    assert device(fake).process_bytes([1]).bytes == 100 * MIB
    fake.errors = {GRAPHICS: 15}
    assert reason(device(fake).process_bytes([1])) == "memory.nvml_gpu_lost"


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
    with pytest.raises(NvmlError) as caught:
        device(fake)
    assert caught.value.reason.key == key


@pytest.mark.parametrize(("code", "expected"), [(3, False), (4, None)])
def test_mig_mode_unknown_is_not_off(code: int, expected: bool | None) -> None:
    assert device(FakeNvml({"nvmlDeviceGetMigMode": code})).mig_enabled() is expected


@pytest.mark.parametrize(
    ("figure", "others", "driver", "key"),
    [
        (missing("memory.nvml_not_listed"), True, None, "memory.nvml_pid_namespace"),
        (missing("memory.nvml_not_listed"), False, None, "memory.nvml_lists_nothing"),
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


def test_probe_where_everything_works() -> None:
    fake = FakeNvml()
    fake.compute = [entry(os.getpid(), 400 * MIB)]
    gpus, nvml = probe_gpus(FakeTorch(), fake)
    assert [(gpu.uuid, gpu.driver_version) for gpu in gpus] == [(f"GPU-{UUID}", "570.124.06")]
    assert (nvml.reason, nvml.process_reason, nvml.device_reason) == (None, None, None)
    assert fake.calls[-1] == "nvmlShutdown"


def test_probe_in_another_pid_namespace() -> None:
    fake = FakeNvml()
    fake.compute = [entry(2**22 + 1, 400 * MIB)]
    _, nvml = probe_gpus(FakeTorch(), fake)
    assert nvml.process_reason is not None
    assert nvml.process_reason.key == "memory.nvml_pid_namespace"
    assert nvml.device_reason is None


def test_probe_without_nvml_still_finds_the_gpu_through_torch() -> None:
    gpus, nvml = probe_gpus(FakeTorch(), FakeNvml({"nvmlInit": 12}))
    assert [gpu.uuid for gpu in gpus] == [f"GPU-{UUID}"]
    assert gpus[0].mig is None
    assert nvml.reason is not None
    assert nvml.reason.key == "memory.nvml_no_library"


def test_probe_on_a_full_gpu_reports_instead_of_failing() -> None:
    _, nvml = probe_gpus(FakeTorch(full=True), FakeNvml())
    assert nvml.reason is not None
    assert nvml.reason.key == "memory.sample_failed"


def test_probe_finds_a_gpu_that_torch_cannot_use() -> None:
    gpus, nvml = probe_gpus(None, FakeNvml())
    assert [(gpu.name, gpu.visible) for gpu in gpus] == [("Fake GPU", False)]
    assert nvml.reason is None
