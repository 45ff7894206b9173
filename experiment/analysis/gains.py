"""Attribute gains to steps of the ladder of arms.

    one by one ─batching─► padded batch ─scheduling and kernels─► slabs ─paging─► paged ─► vLLM

Only the step from slabs to blocks is paging's, if the logs show no other difference. If they do, or
a rung is missing, the step is mixed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from experiment.analysis.differences import products_differ
from experiment.analysis.results import ArmResult, Gain, StepName
from experiment.machine.background_load import is_busy
from experiment.text.messages import Message

BUSY = "experiments.busy"  # message key: why a factor is unknown
_RUNGS = ("contiguous.sequential", "contiguous.batch", "slabs", "paged", "vllm")
_STEPS: tuple[StepName, ...] = ("batching", "engine", "paging", "other_engine")


def gains(arms: list[ArmResult]) -> list[Gain]:
    """A row for each rung that finished with a rate; empty for fewer than two."""
    by_name = {arm.arm: arm for arm in arms if arm.status == "finished" and arm.tokens_per_s}
    rungs: list[Gain] = []
    below: tuple[int, ArmResult, float] | None = None
    for index, name in enumerate(_RUNGS):
        arm = by_name.get(name)
        if arm is None or arm.tokens_per_s is None:
            continue
        factor = step = differ = None
        if below is not None:
            place, other, rate = below
            factor, differ = arm.tokens_per_s / rate, products_differ(arm, other)
            step = _STEPS[place] if index == place + 1 else "mixed"
            if step == "paging" and differ:
                step = "mixed"
        rungs.append(
            Gain(
                arm=name,
                tokens_per_s=arm.tokens_per_s,
                mean_running=arm.mean_running,
                factor=factor,
                step=step,
                products_differ=differ,
            )
        )
        below = index, arm, arm.tokens_per_s
    return rungs if len(rungs) > 1 else []


def disturbed(arms: Iterable[ArmResult], environment: Mapping[str, Any] | None) -> list[str]:
    """Arms with a background load while they generated, in the mean.

    Without samples, the load before the run decides, which ``environment`` holds.
    """
    before = cores_before(environment)
    loads = {arm.arm: arm.watch.others_cores if arm.watch else None for arm in arms}
    return [arm for arm, cores in loads.items() if is_busy(before if cores is None else cores)]


def cores_before(environment: Mapping[str, Any] | None) -> float | None:
    """Background load before a run, in cores, from the environment in its log."""
    load = (environment or {}).get("load") or {}
    cores: float | None = load.get("others_cores")
    return cores


def withhold_disturbed_factors(rows: list[Gain], busy: Collection[str], why: Message) -> list[Gain]:
    """Replace factors by the reason ``why`` if either of the two arms is disturbed.

    ``busy``: arms that ran under background load.
    """
    below: list[str | None] = [None, *(gain.arm for gain in rows)]
    return [
        gain.model_copy(update={"factor": None, "reason": why})
        if gain.factor is not None and (gain.arm in busy or under in busy)
        else gain
        for gain, under in zip(rows, below, strict=False)
    ]
