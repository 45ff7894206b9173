"""Limits of control groups, read from files like those of the kernel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiment.children.probe import ram_facts
from experiment.machine.environment import CgroupLimits, RamFacts
from experiment.memory.cgroup import read_cgroup
from experiment.text.messages import message

MIB, GIB = 2**20, 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_cgroup_v2_takes_the_tightest_limit_of_all_ancestors(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("0::/outer/inner\n", encoding="utf-8")
    root = tmp_path / "fs"
    write(root / "outer/inner/memory.max", "max\n")
    write(root / "outer/inner/cpu.max", "150000 100000\n")
    write(root / "outer/memory.max", f"{2 * GIB}\n")
    write(root / "outer/memory.current", f"{GIB}\n")
    write(root / "outer/memory.stat", f"anon 5\ninactive_file {GIB // 2}\n")
    write(root / "outer/cpu.max", "400000 100000\n")
    assert read_cgroup(proc, root) == CgroupLimits(
        version=2, memory_bytes=2 * GIB, memory_free_bytes=3 * GIB // 2, cpus=1.5
    )


def test_cgroup_v2_without_limits(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("0::/\n", encoding="utf-8")
    write(tmp_path / "fs/memory.max", "max\n")
    write(tmp_path / "fs/cpu.max", "max 100000\n")
    assert read_cgroup(proc, tmp_path / "fs") == CgroupLimits(version=2)


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/../other"])
def test_cgroup_path_of_the_host_seen_from_inside(tmp_path: Path, path: str) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text(f"0::{path}\n", encoding="utf-8")
    write(tmp_path / "fs/memory.max", f"{512 * MIB}\n")
    write(tmp_path / "other/memory.max", f"{MIB}\n")  # not the limit of this process
    limits = read_cgroup(proc, tmp_path / "fs")
    assert limits.memory_bytes == 512 * MIB
    assert limits.memory_free_bytes is None


def test_limits_of_cgroup_v1_are_read_from_its_controllers(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("5:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/\n", encoding="utf-8")
    root = tmp_path / "fs"
    write(root / "memory/job/memory.limit_in_bytes", f"{GIB}\n")
    write(root / "memory/job/memory.usage_in_bytes", f"{GIB // 4}\n")
    write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root / "cpu/job/cpu.cfs_quota_us", "250000\n")
    write(root / "cpu/job/cpu.cfs_period_us", "100000\n")
    write(root / "cpu/cpu.cfs_quota_us", "-1\n")
    write(root / "cpu/cpu.cfs_period_us", "100000\n")
    assert read_cgroup(proc, root) == CgroupLimits(
        version=1, memory_bytes=GIB, memory_free_bytes=3 * GIB // 4, cpus=2.5
    )


def test_hidden_control_groups_are_unknown_and_not_unlimited(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("5:memory:/job\n4:cpu:/job\n0::/job\n", encoding="utf-8")
    (tmp_path / "fs/memory").mkdir(parents=True)
    limits = read_cgroup(proc, tmp_path / "fs")
    assert limits == CgroupLimits(reason=message("memory.cgroup_unreadable"))


def test_ram_is_what_the_control_group_leaves() -> None:
    memory = SimpleNamespace(total=32 * GIB, available=16 * GIB)
    limits = CgroupLimits(version=2, memory_bytes=2 * GIB, memory_free_bytes=GIB)
    assert ram_facts(memory, limits) == RamFacts(total_bytes=32 * GIB, available_bytes=GIB)
    assert ram_facts(memory, CgroupLimits()).available_bytes == 16 * GIB
