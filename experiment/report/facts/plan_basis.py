"""What a plan rests on, and how an installed vLLM lays the same cache out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.analysis.finding_text import listed
from experiment.text.messages import Message, message

Data = Mapping[str, Any]


def rests_on(data: Data) -> Message:
    """Where layout, overhead and, if there are any, step times come from."""
    plan, check = data["plan"], data.get("check")
    is_checked = check is not None and check["verdict"] == "same"
    parts = [message("plan.rests.checked" if is_checked else "plan.rests.layout"), _memory(data)]
    if plan["speed"]:
        source = data["setup"]["latency"]["source"]
        parts.append(message(f"plan.rests.times_{source}"))
    return message("plan.rests.on", parts=listed(parts))


def _memory(data: Data) -> Message:
    budget = data["plan"]["budget"]
    if "log" in data:
        return message("plan.rests.memory_log")
    if budget["usable"] is None:
        return message("plan.rests.memory_given")
    return message("plan.rests.memory_modelled" if budget["assumed"] else "plan.rests.overhead")


def check_lines(check: Data) -> list[Message]:
    """One line if vLLM says the same; otherwise each figure that differs, or why it says none."""
    version, figures = check["vllm"], check["figures"]
    if check["verdict"] == "unknown":
        return [message("plan.check.unknown", reason=check["reason"])]
    if check["verdict"] == "different":
        lines = [
            message(
                "plan.check.differs", name=message(f"plan.check.{name}").model_dump(),
                version=version, **{side: _written(value) for side, value in both.items()},
            )
            for name, both in figures.items()
            if both["plan"] != both["vllm"]
        ]  # fmt: skip
        return lines + ([Message.model_validate(check["reason"])] if check["reason"] else [])
    if check["reason"]:
        return [message("plan.check.same_refusal", version=version)]
    names = ("blocks", "tokens", "concurrency")
    return [message("plan.check.same", version=version, **{n: figures[n]["vllm"] for n in names})]


def _written(value: Any) -> object:
    if isinstance(value, bool):
        return message(f"watch.{'yes' if value else 'no'}").model_dump()
    if isinstance(value, list):
        return " + ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
