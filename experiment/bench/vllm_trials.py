"""What is kept of vLLM's trials (:mod:`experiment.bench.vllm_mode`), and what it does not tell.

    probes    which of its two modes were tried, and which gave a rate
    finals    the same on a workload

A mode is named by whether it is eager. It is called the faster one where both gave a rate on the
workload itself; how threads are bound may be the person's choice and is not asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from experiment.text.messages import Message, message


def tried(trials: Iterable[Mapping[str, Any]]) -> set[bool]:
    """The modes that were tried."""
    return {bool(each["eager"]) for each in trials}


def reached(trials: Iterable[Mapping[str, Any]]) -> set[bool]:
    """The modes that gave a rate."""
    return tried(each for each in trials if any(each["rates"]))


def why_not_faster(told: Mapping[str, Any], workload: str) -> Message | None:
    """Why vLLM may not run in its faster mode on a workload; None: both were run there.

    Args:
        told: what the trials came to.
        workload: one that a target compares with vLLM.
    """
    if len(reached(told["finals"].get(workload, ()))) > 1:
        return None
    kinds = tried(told["probes"])
    if len(kinds) == 1:
        mode = message("bench.eager" if True in kinds else "bench.compiled")
        return message("bench.unjudged.vllm_alone", mode=mode.model_dump())
    return message("bench.unjudged.vllm_rate")
