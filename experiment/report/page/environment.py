"""Facts about the machine for the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiment.text import format_bytes
from experiment.text.messages import Message, message


class FactRow(NamedTuple):
    """A fact about the machine; ``why`` is the reason if it is missing."""

    name: str
    value: str | Message | None
    why: Message | None


def environment_rows(environment: dict[str, Any] | None) -> list[FactRow]:
    """Facts about the machine, without fields of other versions."""
    recorded = environment or {}
    withheld = recorded.get("withheld")
    names = withheld if isinstance(withheld, list | tuple) else ()

    def at(*path: str) -> Any:
        value: Any = recorded
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    return [
        _row("os", _joined(at("system", "os"), at("system", "kernel"), at("system", "machine")),
             "system.kernel" in names),
        _row("python", _joined(at("python", "implementation"), at("python", "version"))),
        _row("torch", _text(at("torch", "version"))),
        _row("transformers", _text(at("transformers", "version"))),
        _row("cpu", _text(at("cpu", "model")), "cpu.model" in names),
        _row("cores", _text(at("cpu", "usable_cores"))),
        _row("ram", _bytes(at("ram", "total_bytes"))),
        _row("ram_available", _bytes(at("ram", "available_bytes"))),
        _row("cgroup_memory", _limit(at("system", "cgroup"), "memory_bytes")),
        _row("cgroup_cpus", _limit(at("system", "cgroup"), "cpus")),
        _row("load", _text(at("load", "average"))),
        _row("gpu", _gpus(at("gpus"))),
        _row("driver", _text(at("nvml", "driver_version"))),
    ]  # fmt: skip


def _row(name: str, value: str | Message | None, withheld: bool = False) -> FactRow:
    """One fact; ``withheld``: it was removed from this copy."""
    if withheld:
        part = "withheld" if value is None else "partly_withheld"
        return FactRow(name, value, message(f"report.environment.{part}"))
    return FactRow(name, value, message("report.environment.not_found") if value is None else None)


def _limit(cgroup: Any, name: str) -> str | Message | None:
    """A limit of a control group, or a message that there is none."""
    if not isinstance(cgroup, dict) or name not in cgroup or cgroup.get("version") is None:
        return None
    if cgroup[name] is None:
        return message("report.environment.no_limit")
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
    names = [
        _joined(gpu.get("name"), _bytes(gpu.get("total_bytes")))
        for gpu in value
        if isinstance(gpu, dict)
    ]
    return ", ".join(name for name in names if name) or None
