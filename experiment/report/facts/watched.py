"""Utilisation and cost of sampling as figures of a table, for console and page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiment.analysis.results import ArmResult, Watch
from experiment.analysis.watched import COST_LIMIT
from experiment.report.facts.values import decimal, percent, signed_size, size
from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class WatchedFigure:
    """A value, or None with a reason; ``is_key``: the value is a message key."""

    value: str | None
    note: Message | None = None
    reason: Message | None = None
    is_key: bool = False


def watched_figure(name: str, arm: ArmResult) -> WatchedFigure:
    """Figure of a row of :data:`WATCHED`."""
    return _WRITERS[name](arm)


def _process(arm: ArmResult) -> WatchedFigure:
    channel = arm.process_variation_channel
    return WatchedFigure(percent(arm.process_variation), _channel(channel))


def _settled(arm: ArmResult) -> WatchedFigure:
    watch = arm.watch
    if watch.settled is None:
        return WatchedFigure(None)
    key = "watch.yes" if watch.settled else "watch.no"
    waited = message("watch.waited", seconds=watch.waited_s)
    return WatchedFigure(key, waited, is_key=True)


def _sampler(arm: ArmResult) -> WatchedFigure:
    share = arm.watch.sampler_share
    if share is None:
        return WatchedFigure(None, reason=message("memory.no_cost"))
    key = "watch.within" if share < COST_LIMIT else "watch.beyond"
    return WatchedFigure(percent(share), message(key, limit=COST_LIMIT, cores=_cores(arm)))


def _foreign(arm: ArmResult) -> WatchedFigure:
    watch = arm.watch
    if watch.foreign_before is None or watch.foreign_after is None:
        return WatchedFigure(None, reason=watch.foreign_reason)
    return WatchedFigure(f"{watch.foreign_before:,} → {watch.foreign_after:,}")


def _device(
    write: Callable[[int | None], str | None], name: str
) -> Callable[[ArmResult], WatchedFigure]:
    def figure(arm: ArmResult) -> WatchedFigure:
        watch: Watch = arm.watch
        written = write(getattr(watch, name))
        return WatchedFigure(written, _channel(watch.device_channel), watch.device_reason)

    return figure


def _cores(arm: ArmResult) -> str:
    return f"{arm.watch.usable_cores:g}"


def _channel(name: str | None) -> Message | None:
    return message(f"channel.{name}") if name else None


_WRITERS: dict[str, Callable[[ArmResult], WatchedFigure]] = {
    "reserved_variation": lambda arm: WatchedFigure(percent(arm.reserved_variation)),
    "allocated_variation": lambda arm: WatchedFigure(percent(arm.allocated_variation)),
    "process_variation": _process,
    "settled": _settled,
    "baseline": _device(size, "baseline_bytes"),
    "device_delta": _device(signed_size, "device_delta_bytes"),
    "foreign": _foreign,
    "cpu_cores": lambda arm: WatchedFigure(
        decimal(arm.watch.cpu_cores),
        message("watch.of_cores", cores=_cores(arm)) if arm.watch.usable_cores else None,
        arm.watch.cpu_reason,
    ),
    "others_cores": lambda arm: WatchedFigure(
        decimal(arm.watch.others_cores), reason=arm.watch.others_reason
    ),
    "gpu_share": lambda arm: WatchedFigure(
        percent(arm.watch.gpu_share), reason=arm.watch.gpu_reason
    ),
    "gpu_memory_share": lambda arm: WatchedFigure(
        percent(arm.watch.gpu_memory_share), reason=arm.watch.gpu_reason
    ),
    "sampler_share": _sampler,
}
WATCHED = tuple(_WRITERS)
