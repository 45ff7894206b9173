"""Judges what the channels saw of memory whose amount is known. No process, no console."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from statistics import median
from typing import Any

from experiment.analysis.watched import COST_LIMIT
from experiment.children.selfcheck import (
    CHURN_REQUESTS,
    CHURN_STAGES,
    GRANDCHILD_BYTES,
    SPIKE_BYTES,
    Moment,
)
from experiment.events import Channel, Check, Reading, SamplerCost
from experiment.machine.background_load import is_busy
from experiment.machine.environment import Environment
from experiment.text.messages import Message, message

KNOWN_BYTES = 256 * 2**20
# Relative to the known amount. The whole system moves for other reasons, so its figure is not
# judged; the high-water mark is judged by the spike.
TOLERANCES = {
    Channel.RSS: 0.02,
    Channel.USS: 0.02,
    Channel.PSS: 0.02,
    Channel.NVML_PROCESS: 0.02,
    Channel.NVML_DEVICE: 0.02,
    Channel.TORCH_ALLOCATED: 0.001,
    Channel.TORCH_RESERVED: 0.02,
    Channel.CUDA_MEM_GET_INFO: 0.02,
}
# Channels that others move too, and those of the process alone: the first that works.
_OWN = {
    Channel.USS: (Channel.RSS,),
    Channel.PSS: (Channel.RSS,),
    Channel.NVML_DEVICE: (Channel.NVML_PROCESS, Channel.TORCH_RESERVED),
    Channel.CUDA_MEM_GET_INFO: (Channel.NVML_PROCESS, Channel.TORCH_RESERVED),
}
TREE = (Channel.RSS, Channel.USS, Channel.PSS)
# An interpreter moves some hundred KiB of its own meanwhile.
GRANDCHILD_TOLERANCE = 0.05
SPIKE_TOLERANCE = 0.05
ROOT_LIMIT_BYTES = 4 * 2**20
INTERVAL_MS = 20
_ON_GPU = (
    Channel.NVML_PROCESS,
    Channel.NVML_DEVICE,
    Channel.TORCH_ALLOCATED,
    Channel.TORCH_RESERVED,
    Channel.CUDA_MEM_GET_INFO,
)


def known_amount_checks(
    readings: Sequence[Reading], environment: Environment, device: str
) -> list[Check]:
    """What each channel saw come and go, the median of the rounds.

    Other processes that share pages with this one change its USS and PSS when they come and go,
    which may spoil one round.
    """
    checks: list[Check] = []
    moved: set[Channel] = set()  # by others: unlike in the rounds
    for channel, tolerance in TOLERANCES.items():
        status = environment.status(channel)
        if (channel in _ON_GPU) != (device == "cuda"):
            continue
        if status.reason is not None:
            checks.append(_not_judged(channel, status.reason))
            continue
        came = _changes(readings, channel, Moment.EMPTY, Moment.HELD)
        left = _changes(readings, channel, Moment.HELD, Moment.FREED)
        if came is None or left is None:
            checks.append(_silent(readings, channel))
            continue
        if max(max(each) - min(each) for each in (came, left)) > tolerance * KNOWN_BYTES:
            moved.add(channel)
        checks.append(_sized("selfcheck.memory", channel, median(came), KNOWN_BYTES, tolerance))
        gone = -median(left)
        checks.append(_sized("selfcheck_memory.freed", channel, gone, KNOWN_BYTES, tolerance))
    return _without_others(checks, moved) + ([_system(readings)] if device == "cpu" else [])


def _without_others(checks: list[Check], moved: Collection[Channel] = ()) -> list[Check]:
    """Do not judge what others may have moved where the process's own figure is right.

    Who shares pages and comes or goes moves USS and PSS; other programs draw on the same GPU.
    torch's figure stands for the process only where the rounds differ (``moved``).
    """
    judged = {check.check: check.passed for check in checks if check.passed is not None}
    found = []
    for check in checks:
        own = [
            judged[name]
            for channel, channels in _OWN.items() if check.check.endswith(f".{channel.value}")
            for one in channels if (name := check.check.replace(channel.value, one.value)) in judged
            and (one is not Channel.TORCH_RESERVED or channel in moved)
        ]  # fmt: skip
        unjudged = check.passed is False and own and own[0]
        found.append(check.model_copy(update={"passed": None}) if unjudged else check)
    return found


def _system(readings: Sequence[Reading]) -> Check:
    """What the whole machine shows, which others move too: told, and not judged."""
    came = _changes(readings, Channel.SYSTEM, Moment.EMPTY, Moment.HELD)
    if came is None:
        return _silent(readings, Channel.SYSTEM)
    text = message(
        "selfcheck_memory.others_move", **_named(Channel.SYSTEM), seen=round(median(came)),
        known=KNOWN_BYTES,
    )  # fmt: skip
    return Check(check=f"memory.{Channel.SYSTEM.value}", passed=None, text=text)


def process_checks(
    readings: Sequence[Reading], environment: Environment, not_reset: Message | None
) -> list[Check]:
    """A grandchild counts for the tree and not for the root; a short spike is not missed.

    Args:
        not_reset: why the high-water mark could not be reset before the grandchild and before the
            spike; what it shows then may be of an earlier, higher moment.
    """
    usable = [channel for channel in TREE if environment.status(channel).usable]
    checks = _without_others([_grandchild(readings, channel) for channel in usable])
    reason = environment.status(Channel.HIGH_WATER).reason or not_reset
    if reason is not None:
        return [*checks, _not_judged(Channel.HIGH_WATER, reason)]
    return [*checks, *_root_alone(readings), _spike(readings)]


def cost_check(
    cost: SamplerCost, cores: float, device: str = "cpu", others: float | None = None
) -> Check:
    """The sampler's share of all cores that the run may use, readings at stages included.

    The same work takes more of a core's time where ``others`` cores are kept busy by other
    programs: too much is then told, and not judged.
    """
    share = cost.cpu_s / (cost.wall_s * cores)
    text = message(
        "selfcheck_memory.cost",
        interval=INTERVAL_MS, cpu=cost.cpu_s, wall=cost.wall_s, share=share, limit=COST_LIMIT,
        cores=f"{cores:g}", stages=CHURN_STAGES + CHURN_REQUESTS,
    )  # fmt: skip
    passed: bool | None = share < COST_LIMIT
    if not passed and is_busy(others):
        text, passed = message("selfcheck_memory.cost_busy", cost=text, others=others), None
    return Check(check=f"sampler.cost.{device}", passed=passed, text=text)


def _grandchild(readings: Sequence[Reading], channel: Channel) -> Check:
    grown = _changes(readings, channel, Moment.GRANDCHILD_IDLE, Moment.GRANDCHILD_HOLDS)
    if grown is None:
        return _silent(readings, channel)
    key = "selfcheck_memory.grandchild"
    return _sized(key, channel, grown[0], GRANDCHILD_BYTES, GRANDCHILD_TOLERANCE)


def _root_alone(readings: Sequence[Reading]) -> list[Check]:
    channel = Channel.HIGH_WATER
    moved = _changes(readings, channel, Moment.GRANDCHILD_IDLE, Moment.GRANDCHILD_HOLDS)
    if moved is None:
        return []  # the check of the spike says so
    text = message(
        "selfcheck_memory.not_root",
        **_named(channel), known=GRANDCHILD_BYTES, seen=moved[0], limit=ROOT_LIMIT_BYTES,
    )  # fmt: skip
    passed = abs(moved[0]) <= ROOT_LIMIT_BYTES
    return [Check(check=f"root.{channel.value}", passed=passed, text=text)]


def _spike(readings: Sequence[Reading]) -> Check:
    channel = Channel.HIGH_WATER
    before = _values(readings, Channel.RSS, Moment.BEFORE_SPIKE)
    after = _values(readings, Channel.RSS, Moment.AFTER_SPIKE)
    peak = _values(readings, channel, Moment.AFTER_SPIKE)
    if before is None or after is None or peak is None:
        return _silent(readings, channel)
    seen = peak[0] - before[0]
    return _sized(
        "selfcheck_memory.spike", channel, seen, SPIKE_BYTES, SPIKE_TOLERANCE,
        between=after[0] - before[0],
    )  # fmt: skip


def _sized(
    key: str, channel: Channel, seen: float, known: int, tolerance: float, **more: Any
) -> Check:
    off = seen / known - 1
    text = message(
        key, **_named(channel), seen=round(seen), known=known, off=off, tolerance=tolerance, **more
    )
    name = f"{key.removeprefix('selfcheck_').removeprefix('selfcheck.')}.{channel.value}"
    return Check(check=name, passed=abs(off) <= tolerance, text=text)


def _not_judged(channel: Channel, reason: Message) -> Check:
    text = message("selfcheck_memory.not_judged", **_named(channel), reason=reason.model_dump())
    return Check(check=f"memory.{channel.value}", passed=None, text=text)


def _silent(readings: Iterable[Reading], channel: Channel) -> Check:
    """The environment says that the channel works; then it must give figures."""
    reasons = [r.reason for r in readings if r.channel is channel and r.reason is not None]
    reason = reasons[-1].model_dump() if reasons else None
    text = message("selfcheck_memory.silent", **_named(channel), reason=reason)
    return Check(check=f"memory.{channel.value}", passed=False, text=text)


def _changes(
    readings: Sequence[Reading], channel: Channel, first: Moment, second: Moment
) -> list[int] | None:
    """Bytes between two moments, for each round; None where a figure is missing."""
    low, high = _values(readings, channel, first), _values(readings, channel, second)
    if low is None or high is None:
        return None
    return [after - before for before, after in zip(low, high, strict=True)]


def _values(readings: Sequence[Reading], channel: Channel, moment: Moment) -> list[int] | None:
    found = [r.bytes for r in readings if r.channel is channel and r.request == moment]
    known = [size for size in found if size is not None]
    return known if known and len(known) == len(found) else None


def _named(channel: Channel) -> dict[str, Any]:
    return {"channel": message(f"channel.{channel.value}").model_dump()}
