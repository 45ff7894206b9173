"""A run on a GPU, its channels driven by stand-ins: what is made of their readings."""

from __future__ import annotations

import os

import pytest
from made_up_machine import cuda_environment
from memory_fakes import MIB, FakeNvml, entry

from experiment.analysis.reconcile import reconcile
from experiment.analysis.variation import ProcessPeaks, largest_process
from experiment.analysis.watched import foreign_processes
from experiment.events import Baseline, Channel, Event, ForeignProcesses, Reading, Scope, Stage
from experiment.machine.environment import NvmlFacts
from experiment.memory.monitor import Monitor
from experiment.text.messages import message

GIB = 1024 * MIB
KV = 144 * MIB
ON_GPU = (Channel.TORCH_ALLOCATED, Channel.TORCH_RESERVED, Channel.CUDA_MEM_GET_INFO)


def reading(channel: Channel, stage: Stage, size: int) -> Reading:
    return Reading(arm="a", channel=channel, scope=Scope.PROCESS, bytes=size, stage=stage)


def test_on_a_gpu_every_channel_of_the_ladder_agrees_and_main_memory_is_not_asked() -> None:
    """The monitor's own readings of this process, whose main memory holds nothing of the cache."""
    found: list[Reading] = []
    fake = FakeNvml()
    fake.compute = [entry(os.getpid(), 900 * MIB)]

    def emit(event: Event) -> None:
        if isinstance(event, Reading):
            found.append(event)

    watch = Monitor("a", os.getpid(), cuda_environment(), emit, 20, fake)
    for stage, size in ((Stage.LOADED, 0), (Stage.CACHE_READY, KV)):
        found += [reading(channel, stage, 300 * MIB + size) for channel in ON_GPU]
        fake.used += size
        fake.compute = [entry(os.getpid(), 900 * MIB + size)]
        watch.mark(stage)
    of_tensors = (Channel.FORMULA, Channel.TENSORS, Channel.POISON)
    found += [reading(channel, Stage.CACHE_READY, KV) for channel in of_tensors]
    result = reconcile(found, [], None, others=0)
    assert result is not None
    assert result.agree is True, result.text
    seen = {*ON_GPU, Channel.NVML_PROCESS, Channel.NVML_DEVICE, Channel.TENSORS, Channel.POISON}
    assert {row.channel for row in result.rows} == seen
    assert all(row.agrees for row in result.rows)
    growing = [r for r in found if r.channel is not Channel.FORMULA]
    result = reconcile(growing, [], None)
    assert result is not None
    assert Channel.RSS not in {row.channel for row in result.rows}


@pytest.mark.parametrize("told", [True, False])
def test_inputs_that_an_engine_reserves_with_its_cache_are_a_part_and_no_difference(
    told: bool,
) -> None:
    channels = (*ON_GPU, Channel.NVML_PROCESS, Channel.NVML_DEVICE)
    found = [
        reading(channel, stage, 300 * MIB + size)
        for stage, size in ((Stage.LOADED, 0), (Stage.CACHE_READY, KV + 16 * MIB))
        for channel in channels
    ]
    of_tensors = (Channel.FORMULA, Channel.TENSORS)
    found += [reading(channel, Stage.CACHE_READY, KV) for channel in of_tensors]
    found += [reading(Channel.STATIC_INPUTS, Stage.CACHE_READY, 16 * MIB)] if told else []
    result = reconcile(found, [], None, others=0)
    assert result is not None
    assert result.agree is told
    parts = {part.part: part.bytes for part in result.parts}
    inputs = 16 * MIB if told else 0
    assert (parts["kv"], parts.get("inputs", 0)) == (KV + 16 * MIB - inputs, inputs)


@pytest.mark.parametrize(
    ("before", "working", "loading"), [(4 * GIB, KV + MIB, KV), (None, None, None)]
)
def test_what_others_hold_on_the_device_is_no_peak_of_the_arm(
    before: int | None, working: int | None, loading: int | None
) -> None:
    """NVML hides the process in most containers and on WSL2, and shows the whole GPU."""
    machine = cuda_environment(
        NvmlFacts(reason=None, process_reason=message("memory.nvml_pid_namespace"))
    )
    device = Channel.NVML_DEVICE
    assert machine.primary.channel is device
    found = [
        reading(device, Stage.LOADED, 4 * GIB + MIB),
        reading(device, Stage.CACHE_READY, 4 * GIB + KV),
        reading(device, Stage.LAST_STEP, 4 * GIB + KV + MIB),
    ]
    found = [r.model_copy(update={"t_ns": place}) for place, r in enumerate(found)]
    baseline = Baseline(
        arm="a", channel=device, bytes=before, settled=True, waited_s=0.0, foreign=None
    )
    peaks = largest_process(found, machine, None, baseline)
    assert (peaks.working, peaks.loading) == (working, loading)
    assert largest_process(found, machine) == ProcessPeaks(None, None, None)


@pytest.mark.parametrize(("others", "agree"), [(0, False), (1, True), (None, True)])
def test_what_a_desktop_draws_meanwhile_is_no_difference(others: int | None, agree: bool) -> None:
    device = (Channel.NVML_DEVICE, Channel.CUDA_MEM_GET_INFO)
    found = [
        reading(channel, stage, size + (30 * MIB if channel in device and size else 0))
        for stage, size in ((Stage.LOADED, 0), (Stage.CACHE_READY, KV))
        for channel in (*ON_GPU, Channel.NVML_PROCESS, Channel.NVML_DEVICE)
    ]
    found.append(reading(Channel.FORMULA, Stage.CACHE_READY, KV))
    result = reconcile(found, [], None, others=others)
    assert result is not None
    assert result.agree is agree
    judged = {row.channel: row.agrees for row in result.rows}
    assert judged[Channel.NVML_PROCESS] is True
    for row in result.rows:
        if row.channel in device:
            assert row.agrees is (None if agree else False)
            assert row.difference == pytest.approx(30 / 144)
            assert row.reason == (message("reconcile.others") if agree else None)


@pytest.mark.parametrize(
    ("before", "after", "most"),
    [(0, 0, 0), (0, 2, 2), (1, 0, 1), (None, 0, None), (0, None, None)],
)
def test_others_are_unknown_where_one_look_showed_none(
    before: int | None, after: int | None, most: int | None
) -> None:
    baseline = Baseline(
        arm="a", channel=Channel.NVML_DEVICE, bytes=0, settled=True, waited_s=0.0, foreign=before
    )
    ended = ForeignProcesses(arm="a", before=before, after=after)
    assert foreign_processes(baseline, ended) == most
    assert foreign_processes(baseline, None) == before
    assert foreign_processes(None, ended) is None
