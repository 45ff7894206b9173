"""Channels that agree, channels that do not, and channels that could not look."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiment.analysis.reconcile import reconcile
from experiment.analysis.results import Reconciliation
from experiment.engine.kv_pool import KVPool
from experiment.events import Channel, HighWaterReset, Reading, Scope, Stage
from experiment.memory.process_tree import ProcessTree
from experiment.memory.tensors import storage_bytes
from experiment.text.messages import Message, message
from kvsim.sizing.geometry import KVGeometry

MIB = 2**20
KV = 144 * MIB


def reading(channel: Channel, stage: Stage | None, size: int | None) -> Reading:
    reason = message("memory.torch_cpu") if size is None else None
    scope = Scope.TREE
    return Reading(arm="a", channel=channel, scope=scope, bytes=size, reason=reason, stage=stage)


def reconciled(readings: list[Reading], reset: HighWaterReset | None = None) -> Reconciliation:
    found = reconcile(readings, [], None, reset)
    assert found is not None
    return found


def arm(rss_growth: int = KV, counted: int | None = KV) -> Reconciliation:
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, KV),
        reading(Channel.POISON, Stage.CACHE_READY, counted),
        reading(Channel.TENSORS, Stage.CACHE_READY, KV),
        reading(Channel.RSS, Stage.START, 300 * MIB),
        reading(Channel.WEIGHTS, Stage.LOADED, 450 * MIB),
        reading(Channel.RSS, Stage.LOADED, 800 * MIB),
        reading(Channel.RSS, Stage.CACHE_READY, 800 * MIB + rss_growth),
        reading(Channel.RSS, None, 1000 * MIB),
        reading(Channel.ALLOCATOR_SLACK, Stage.LAST_STEP, 3 * MIB),
        reading(Channel.RSS, Stage.RELEASED, 320 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.LOADED, None),
        reading(Channel.TORCH_ALLOCATED, Stage.CACHE_READY, None),
    ]
    return reconciled(rows)


def figure(found: Reconciliation, channel: Channel) -> tuple[int | None, bool | None]:
    row = next(row for row in found.rows if row.channel == channel.value)
    return row.bytes, row.agrees


@pytest.mark.parametrize(
    ("changes", "channel", "agree", "text"),
    [
        ({}, Channel.RSS, True, "agree"),
        ({"rss_growth": KV + 20 * MIB}, Channel.RSS, False, "differ"),
        ({"counted": KV - 73_728}, Channel.POISON, False, "differ"),  # a slot
    ],
)
def test_channels_agree_where_they_see_the_same_bytes(
    changes: dict[str, int], channel: Channel, agree: bool, text: str
) -> None:
    found = arm(**changes)
    assert (found.agree, found.text.key) == (agree, f"reconcile.{text}")
    size = KV if not changes else next(iter(changes.values()))
    assert figure(found, channel) == (size, agree)
    if "rss_growth" in changes:
        assert found.text.params["off"] == pytest.approx(20 / 144)


_SHARER = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(pages[at] for at in range(0, len(pages), 4096))
if len(sys.argv) > 2:
    print(flush=True)
    sys.stdin.readline()
    pool = mmap.mmap(-1, int(sys.argv[2]), mmap.MAP_PRIVATE)
    for at in range(0, int(sys.argv[3]), 4096):
        pool[at] = 1
print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PSS exists on Linux alone")
@pytest.mark.parametrize(("missing", "others"), [(0, 1), (0, 2), (20 * MIB, 1)])
def test_a_process_that_shared_pages_and_ended_is_no_disagreement(
    missing: int, others: int, tmp_path: Path
) -> None:
    """An arm and other processes map a file. One of them ends while the arm takes its pool.

    A pool of which pages are missing is reported all the same.
    """
    shared = tmp_path / "library"
    shared.write_bytes(bytes(96 * MIB))
    words = [sys.executable, "-c", _SHARER, str(shared)]
    started: list[subprocess.Popen[str]] = []

    def start(*more: int) -> subprocess.Popen[str]:
        command = [*words, *map(str, more)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, encoding="utf-8"))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline()
        return started[-1]

    try:
        neighbours = [start() for _ in range(others)]
        arm = start(KV, KV - missing)
        tree = ProcessTree(arm.pid)

        def look(stage: Stage) -> list[Reading]:
            details = tree.details()
            uss, pss = details["uss"](), details["pss"]()
            sizes = {Channel.RSS: tree.rss(), Channel.USS: uss, Channel.PSS: pss}
            return [reading(channel, stage, size.bytes) for channel, size in sizes.items()]

        readings = [reading(Channel.FORMULA, Stage.CACHE_READY, KV), *look(Stage.LOADED)]
        neighbours[0].kill()
        neighbours[0].wait()
        assert arm.stdin is not None
        assert arm.stdout is not None
        arm.stdin.write("\n")
        arm.stdin.flush()
        assert arm.stdout.readline()
        readings += look(Stage.CACHE_READY)
    finally:
        for process in started:
            process.kill()
            process.communicate()
    found = reconciled(readings)
    pss = next(row for row in found.rows if row.channel == Channel.PSS.value)
    assert found.agree is (missing == 0)
    if missing:
        assert figure(found, Channel.RSS)[1] is False
        assert found.text.key == "reconcile.differ"
    else:
        assert (pss.agrees, pss.reason) == (None, message("reconcile.sharers"))
        assert pss.difference is not None
        assert pss.difference > 0.1
        assert found.text.key != "reconcile.agree_small"


def test_what_could_not_be_read_is_neither_equal_nor_zero() -> None:
    row = next(r for r in arm().rows if r.channel == Channel.TORCH_ALLOCATED.value)
    assert (row.bytes, row.agrees, row.difference) == (None, None, None)
    assert row.reason == message("memory.torch_cpu")


def test_a_growing_cache_hides_no_reason_that_a_channel_has_of_its_own() -> None:
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, None),
        reading(Channel.TENSORS, Stage.LAST_STEP, KV),
        reading(Channel.RSS, Stage.CACHE_READY, 800 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.CACHE_READY, None),
    ]
    found = reconciled(rows)
    why = {row.channel: row.reason.key for row in found.rows if row.reason}
    assert why == {
        Channel.RSS.value: "memory.nothing_reserved",
        Channel.TORCH_ALLOCATED.value: "memory.torch_cpu",
    }


def test_the_rest_of_the_process_is_told_part_by_part() -> None:
    parts = {part.part: part.bytes for part in arm().parts}
    assert parts == {
        "runtime": 300 * MIB,
        "weights": 450 * MIB,
        "started": 50 * MIB,
        "kv": KV,
        "work": (1000 - 944) * MIB,
        "slack": 3 * MIB,
        "left": 20 * MIB,
    }


def test_a_cache_that_drowns_in_what_allocators_move_is_not_judged_by_them() -> None:
    found = reconciled(
        [
            reading(Channel.FORMULA, Stage.CACHE_READY, MIB),
            reading(Channel.TENSORS, Stage.CACHE_READY, MIB),
            reading(Channel.POISON, Stage.CACHE_READY, MIB),
            reading(Channel.RSS, Stage.LOADED, 100 * MIB),
            reading(Channel.RSS, Stage.CACHE_READY, 103 * MIB),
        ]
    )
    row = next(row for row in found.rows if row.channel == Channel.RSS.value)
    assert (row.bytes, row.agrees, row.difference) == (3 * MIB, None, pytest.approx(2))
    assert row.reason == message("reconcile.too_small", limit=32 * MIB)
    assert found.agree is True
    assert found.text.key == "reconcile.agree_small"


def gpu_arm() -> list[Reading]:
    return [
        reading(Channel.FORMULA, Stage.CACHE_READY, KV),
        reading(Channel.RSS, Stage.CACHE_READY, 2000 * MIB),
        reading(Channel.WEIGHTS, Stage.LOADED, 230 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.LOADED, 240 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.CACHE_READY, 240 * MIB + KV),
        reading(Channel.TORCH_RESERVED, Stage.CACHE_READY, 400 * MIB),
        reading(Channel.NVML_PROCESS, Stage.CACHE_READY, 900 * MIB),
        reading(Channel.TORCH_ALLOCATED_PEAK, Stage.LAST_STEP, 250 * MIB + KV),
        reading(Channel.ALLOCATOR_SLACK, Stage.LAST_STEP, 6 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.RELEASED, 8 * MIB),
        reading(Channel.NVML_PROCESS, Stage.RELEASED, 510 * MIB),
    ]


def parts_of(readings: list[Reading]) -> dict[str, tuple[str, int | None]]:
    found = reconciled(readings)
    return {part.part: (part.channel, part.bytes) for part in found.parts}


def test_on_a_gpu_the_context_is_told_from_what_torch_holds() -> None:
    assert parts_of(gpu_arm()) == {
        "runtime": ("nvml.process", 500 * MIB),
        "weights": ("weights", 230 * MIB),
        "started": ("torch.allocated", 10 * MIB),
        "kv": ("torch.allocated", KV),
        "work": ("torch.allocated_peak", 10 * MIB),
        "slack": ("allocator.slack", 6 * MIB),
        "left": ("torch.allocated", 8 * MIB),
    }


def test_what_torch_holds_in_larger_pieces_is_measured_and_allowed_and_no_more() -> None:
    def verdict(nvml: int, reserved: int) -> bool | None:
        rows = [
            reading(Channel.FORMULA, Stage.CACHE_READY, KV),
            reading(Channel.TORCH_ALLOCATED, Stage.LOADED, 0),
            reading(Channel.TORCH_ALLOCATED, Stage.CACHE_READY, KV),
            reading(Channel.TORCH_RESERVED, Stage.LOADED, 0),
            reading(Channel.TORCH_RESERVED, Stage.CACHE_READY, reserved),
            reading(Channel.NVML_PROCESS, Stage.LOADED, 0),
            reading(Channel.NVML_PROCESS, Stage.CACHE_READY, nvml),
        ]
        return reconciled(rows).agree

    assert verdict(nvml=KV + 16 * MIB, reserved=KV + 16 * MIB) is True
    assert verdict(nvml=KV + 16 * MIB, reserved=KV) is False
    assert verdict(nvml=KV + 40 * MIB, reserved=KV + 16 * MIB) is False
    assert verdict(nvml=5 * KV, reserved=5 * KV) is False  # no piece is that large


def test_a_gpu_that_hides_its_processes_leaves_the_context_unknown_and_no_more() -> None:
    hidden = [
        reading(r.channel, r.stage, None if r.channel is Channel.NVML_PROCESS else r.bytes)
        for r in gpu_arm()
    ]
    found = parts_of(hidden)
    assert found["runtime"][1] is None
    assert (found["weights"][1], found["left"][1]) == (230 * MIB, 8 * MIB)


@pytest.mark.parametrize(
    ("reason", "work"), [(None, 90 * MIB), (message("memory.process_denied"), 6 * MIB)]
)
def test_a_spike_between_samples_is_work_where_the_mark_was_reset(
    reason: Message | None, work: int
) -> None:
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, KV),
        reading(Channel.RSS, Stage.LOADED, 800 * MIB),
        reading(Channel.RSS, Stage.CACHE_READY, 800 * MIB + KV),
        reading(Channel.HIGH_WATER, Stage.CACHE_READY, 5000 * MIB),  # of loading
    ]
    reset = HighWaterReset(arm="a", reason=reason)
    later = [
        reading(Channel.RSS, None, 806 * MIB + KV),
        reading(Channel.HIGH_WATER, Stage.LAST_STEP, 890 * MIB + KV),
        reading(Channel.HIGH_WATER, Stage.RELEASED, 2000 * MIB),  # of taking everything down
    ]
    found = reconciled([*rows, *later], reset)
    assert {part.part: part.bytes for part in found.parts}["work"] == work


def test_the_real_count_of_a_damaged_pool_is_called_a_difference() -> None:
    geometry = KVGeometry(2, 2, 8, 4)
    pool = KVPool(geometry, 4, 16, torch.float32, torch.device("cpu"))
    size = 4 * 16 * geometry.bytes_per_token
    pool.kv[:, :, 1, :, 3] = 0.0  # one slot that somebody wrote before the first request
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, size),
        reading(Channel.TENSORS, Stage.CACHE_READY, storage_bytes([pool.kv])),
        reading(Channel.POISON, Stage.CACHE_READY, pool.poisoned_bytes()),
    ]
    found = reconciled(rows)
    assert figure(found, Channel.TENSORS) == (size, True)
    assert figure(found, Channel.POISON) == (size - geometry.bytes_per_token, False)
    assert found.agree is False


def test_an_arm_without_a_cache_has_nothing_to_reconcile() -> None:
    assert reconcile([reading(Channel.RSS, Stage.START, 1)], [], None) is None
