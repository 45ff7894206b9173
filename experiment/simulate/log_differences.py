"""What a start-up log and a plan differ in, as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiment.analysis.finding_text import listed
from experiment.text.messages import Message, message

# Options that may be wrong where a figure differs.
_CHECK = {
    "tokens": ("--model", "--kv-dtype", "--gpus"),
    "weights": ("--model", "--weights", "--gpus"),
    "gpus": ("--gpus",),
    "stages": ("--pipeline-parallel-size",),
    "engines": ("--data-parallel-size",),
    "memory": ("--gpu",),
    "model": ("--model",),
}


def differences(found: Sequence[Mapping[str, Any]]) -> Message:
    """What a log and a plan differ in, and the options to check.

    Args:
        found: each with ``name``, and the figures of ``log`` and ``plan``.
    """
    parts = [
        message(f"plan.log.differs_{each['name']}", log=each["log"], plan=each["plan"])
        for each in found
    ]
    flags = dict.fromkeys(flag for each in found for flag in _CHECK[each["name"]])
    return message("plan.log.differs", parts=listed(parts), flags=listed(flags))
