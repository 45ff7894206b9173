"""Facts about the machine for the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiment.text import format_bytes
from experiment.text.messages import Message, message


def environment_rows(environment: dict[str, Any] | None) -> dict[str, str | Message | None]:
    """Facts about the machine by name, without fields of other versions; None if not found."""

    def at(*path: str) -> Any:
        value: Any = environment
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    cgroup = at("system", "cgroup")
    system = (at("system", name) for name in ("os", "kernel", "machine"))
    return {
        "os": _joined(*system),
        "python": _joined(at("python", "implementation"), at("python", "version")),
        "torch": _text(at("torch", "version")),
        "transformers": _text(at("transformers", "version")),
        "cpu": _text(at("cpu", "model")),
        "cores": _text(at("cpu", "usable_cores")),
        "ram": _bytes(at("ram", "total_bytes")),
        "ram_available": _bytes(at("ram", "available_bytes")),
        "cgroup_memory": _limit(cgroup, "memory_bytes"),
        "cgroup_cpus": _limit(cgroup, "cpus"),
        "load": _text(at("load", "average")),
        "gpu": _gpus(at("gpus")),
        "driver": _text(at("nvml", "driver_version")),
    }


def _limit(cgroup: Any, name: str) -> str | Message | None:
    """A limit of a control group, or a message that there is none."""
    if not isinstance(cgroup, dict) or name not in cgroup or cgroup.get("version") is None:
        return None
    if cgroup[name] is None:
        return message("console.no_limit")
    return _bytes(cgroup[name]) if name.endswith("_bytes") else _text(cgroup[name])


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _bytes(value: Any) -> str | None:
    return format_bytes(value) if isinstance(value, int | float) else None


def _joined(*values: Any) -> str | None:
    return " ".join(str(value) for value in values if value) or None


def _gpus(value: Any) -> str | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    known = (gpu for gpu in value if isinstance(gpu, dict))
    names = (_joined(gpu.get("name"), _bytes(gpu.get("total_bytes"))) for gpu in known)
    return ", ".join(filter(None, names)) or None
