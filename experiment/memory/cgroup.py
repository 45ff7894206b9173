"""Limits of the control group of this process, cgroup v1 and v2.

    /proc/self/cgroup          0::/a/b                    v2: the path in the unified hierarchy
                               4:memory:/a/b              v1: one path for each controller
    /sys/fs/cgroup             a/b/memory.max             v2
    /sys/fs/cgroup/memory      a/b/memory.limit_in_bytes  v1

Limits of all ancestors apply, so every directory up to the root is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from experiment.machine.environment import CgroupLimits
from experiment.text.messages import message

PROC = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
# v1 writes "no limit" as the largest multiple of the page size below 2**63.
_NO_LIMIT = 2**62
# Files of which a control group has at least one; the root of v2 has no limits.
_FILES = (
    "cgroup.procs", "cgroup.controllers", "memory.max", "cpu.max", "memory.limit_in_bytes",
    "cpu.cfs_quota_us",
)  # fmt: skip


def read_cgroup(proc: Path = PROC, root: Path = ROOT) -> CgroupLimits:
    """Read the limits of this process; ``reason`` is set if their files are hidden."""
    text = _text(proc)
    if text is None:
        return CgroupLimits()
    paths = _controllers(text)
    memory_v1, cpu_v1 = "memory" in paths, "cpu" in paths
    mounts = [(root / name, paths[name]) for name in ("memory", "cpu") if name in paths]
    if not any(_is_mounted(*mount) for mount in (*mounts, (_unified(root), paths.get("", "/")))):
        return CgroupLimits(reason=message("memory.cgroup_unreadable"))
    if memory_v1:
        memory = _memory(_levels(root / "memory", paths["memory"]), *_MEMORY_V1)
    else:
        memory = _memory(_levels(_unified(root), paths.get("", "/")), *_MEMORY_V2)
    if cpu_v1:
        cpus = [_quota_v1(level) for level in _levels(root / "cpu", paths["cpu"])]
    else:
        cpus = [_quota_v2(level) for level in _levels(_unified(root), paths.get("", "/"))]
    return CgroupLimits(
        version=1 if memory_v1 or cpu_v1 else 2,
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_free_bytes=min((free for _, free in memory if free is not None), default=None),
        cpus=min((quota for quota in cpus if quota is not None), default=None),
    )


_MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_MEMORY_V2 = ("memory.max", "memory.current", "inactive_file")


def _controllers(text: str) -> dict[str, str]:
    """Path by controller; the v2 hierarchy has the empty name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            paths |= dict.fromkeys(parts[1].split(","), parts[2])
    return paths


def _is_mounted(mount: Path, path: str) -> bool:
    """Whether control groups are visible: one of their files exists."""
    return any((level / name).exists() for level in _levels(mount, path) for name in _FILES)


def _unified(root: Path) -> Path:
    """Mount of the v2 hierarchy; beside v1 controllers it has its own directory."""
    hybrid = root / "unified"
    return hybrid if hybrid.is_dir() else root


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """Yield every directory from the group of this process up to the mount.

    In a container the path may be the host's: it may exist only in part, or leave the mount by
    ``..``. Then the existing part, at least the mount itself, is used.
    """
    parts = [part for part in path.split("/") if part]
    if ".." in parts:
        parts = []
    for length in range(len(parts), -1, -1):
        level = mount.joinpath(*parts[:length])
        if level.is_dir():
            yield level


def _memory(
    levels: Iterator[Path], limit_name: str, used_name: str, inactive_name: str
) -> list[tuple[int, int | None]]:
    """Limit and free bytes of each level that has a limit."""
    rows: list[tuple[int, int | None]] = []
    for level in levels:
        limit = _number(level / limit_name)
        if limit is None or not 0 <= limit < _NO_LIMIT:
            continue
        used = _number(level / used_name)
        free = None
        if used is not None:
            # Inactive file pages are reclaimed under pressure.
            used -= _statistic(level / "memory.stat", inactive_name)
            free = max(0, limit - max(0, used))
        rows.append((limit, free))
    return rows


def _quota_v1(level: Path) -> float | None:
    quota = _number(level / "cpu.cfs_quota_us")
    period = _number(level / "cpu.cfs_period_us")
    return quota / period if quota and quota > 0 and period else None


def _quota_v2(level: Path) -> float | None:
    words = (_text(level / "cpu.max") or "").split()
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def _statistic(path: Path, name: str) -> int:
    for line in (_text(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return 0


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
