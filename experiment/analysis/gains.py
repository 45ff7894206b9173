"""Where the gain comes from: the arms as rungs of a ladder, and what each step up is called.

    one by one ─batching─► padded batch ─scheduling and kernels─► slabs ─paging─► paged ─► vLLM

Only the step from slabs to blocks is paging's: those two arms differ in nothing else, as long as
their logs say so. Where they do not, or a rung is missing, the step mixes several things.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from experiment.analysis.differences import products_differ
from experiment.analysis.results import ArmResult, Gain, StepName
from experiment.machine.background_load import is_busy
from experiment.text.messages import Message

BUSY = "experiments.busy"  # why a factor is not known: a message
_RUNGS = ("contiguous.sequential", "contiguous.batch", "slabs", "paged", "vllm")
_STEPS: tuple[StepName, ...] = ("batching", "engine", "paging", "other_engine")


def gains(arms: list[ArmResult]) -> list[Gain]:
    """A row for each rung that finished with a rate; none where there are fewer than two."""
    by_name = {arm.arm: arm for arm in arms if arm.status == "finished" and arm.tokens_per_s}
    found: list[Gain] = []
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
        found.append(
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
    return found if len(found) > 1 else []


def disturbed(arms: Iterable[ArmResult], environment: Mapping[str, Any] | None) -> list[str]:
    """Arms beside which other programs kept cores busy while they generated, in the mean.

    Where no sample says so, what was seen before the run decides, which ``environment`` holds.
    """
    before = cores_before(environment)
    seen = {arm.arm: arm.watch.others_cores if arm.watch else None for arm in arms}
    return [arm for arm, cores in seen.items() if is_busy(before if cores is None else cores)]


def cores_before(environment: Mapping[str, Any] | None) -> float | None:
    """Cores that other programs kept busy before a run, by the environment in its log."""
    load = (environment or {}).get("load") or {}
    cores: float | None = load.get("others_cores")
    return cores


def told_apart(found: list[Gain], busy: Collection[str], why: Message) -> list[Gain]:
    """The same, and no factor of two arms of which one is disturbed; ``why`` says so there.

    ``busy``: arms that ran while other programs kept cores busy.
    """
    below: list[str | None] = [None, *(gain.arm for gain in found)]
    return [
        gain.model_copy(update={"factor": None, "reason": why})
        if gain.factor is not None and (gain.arm in busy or under in busy)
        else gain
        for gain, under in zip(found, below, strict=False)
    ]
