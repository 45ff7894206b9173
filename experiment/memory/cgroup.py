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
    hybrid = root / "unified"  # beside v1 controllers, v2 has its own directory
    unified = list(_levels(hybrid if hybrid.is_dir() else root, paths.get("", "/")))
    v1 = {name: list(_levels(root / name, paths[name])) for name in ("memory", "cpu")
          if name in paths}  # fmt: skip
    visible = [*unified, *(level for levels in v1.values() for level in levels)]
    if not any((level / name).exists() for level in visible for name in _FILES):
        return CgroupLimits(reason=message("memory.cgroup_unreadable"))
    names = _MEMORY_V1 if "memory" in v1 else _MEMORY_V2
    memory = [row for level in v1.get("memory", unified) if (row := _memory(level, *names))]
    quotas = [_quota(level) for level in v1.get("cpu", unified)]
    return CgroupLimits(
        version=1 if v1 else 2,
        memory_bytes=min((limit for limit, _ in memory), default=None),
        memory_free_bytes=min((free for _, free in memory if free is not None), default=None),
        cpus=min((quota for quota in quotas if quota is not None), default=None),
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
    level: Path, limit_name: str, used_name: str, inactive_name: str
) -> tuple[int, int | None] | None:
    """Limit and free bytes of a level; None without a limit."""
    limit = _number(_text(level / limit_name))
    if limit is None or not 0 <= limit < _NO_LIMIT:
        return None
    used = _number(_text(level / used_name))
    if used is None:
        return limit, None
    # Inactive file pages are reclaimed under pressure.
    lines = (_text(level / "memory.stat") or "").splitlines()
    rows = dict(line.split() for line in lines if len(line.split()) == 2)
    used -= _number(rows.get(inactive_name)) or 0
    return limit, max(0, limit - max(0, used))


def _quota(level: Path) -> float | None:
    """CPUs of a level, by either version's files; None without a quota."""
    words = (_text(level / "cpu.max") or "").split()
    if len(words) != 2:
        words = [_text(level / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
    quota, period = map(_number, words)
    return quota / period if quota and quota > 0 and period else None


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
