"""Section 5 of the page: the same KV bytes by each channel, and the parts of the process."""

from __future__ import annotations

from collections.abc import Callable

from experiment.messages import Message, message
from experiment.report.html_parts import Cell, Row, why_unknown
from experiment.report.values import decimal, percent, size
from experiment.results import ArmResult, ChannelFigure, Results


def channels(results: Results) -> list[Row]:
    """A row per channel that has a figure for any arm; the formula first."""
    arms = results.arms
    rows = [Row("channel.formula", [_expected(arm) for arm in arms])]
    names = dict.fromkeys(
        row.channel
        for arm in arms
        if arm.reconciliation
        for row in arm.reconciliation.rows
        if row.bytes is not None
    )
    rows += [Row(f"channel.{name}", [_figure(arm, name) for arm in arms]) for name in names]
    return rows


def parts(results: Results) -> list[Row]:
    """A row per part of the process's memory."""
    found = [arm.reconciliation for arm in results.arms if arm.reconciliation]
    names = dict.fromkeys(part.part for one in found for part in one.parts)
    return [Row(f"reconcile.{name}", [_part(arm, name) for arm in results.arms]) for name in names]


def watched(results: Results) -> list[Row]:
    """How much memory varied, how busy the machine was, what watching cost; unknown rows stay."""
    writers: dict[str, Callable[[ArmResult], str | None]] = {
        "reserved_variation": lambda arm: percent(arm.reserved_variation),
        "allocated_variation": lambda arm: percent(arm.allocated_variation),
        "process_variation": lambda arm: percent(arm.process_variation),
        "cpu_cores": lambda arm: decimal(arm.watch.cpu_cores),
        "gpu_share": lambda arm: percent(arm.watch.gpu_share),
        "gpu_memory_share": lambda arm: percent(arm.watch.gpu_memory_share),
        "sampler_share": lambda arm: percent(arm.watch.sampler_share),
    }
    return [
        Row(f"watch.{name}", [_watched(arm, name, write(arm)) for arm in results.arms])
        for name, write in writers.items()
    ]


def _watched(arm: ArmResult, name: str, value: str | None) -> Cell:
    reasons = {"gpu_share": arm.watch.gpu_reason, "gpu_memory_share": arm.watch.gpu_reason}
    reasons["cpu_cores"] = arm.watch.cpu_reason
    return Cell(value, reason=reasons.get(name) or why_unknown(arm))


def sentences(results: Results) -> list[tuple[str, Message, bool]]:
    """(arm, what its channels say, whether they agree) of every arm that has a cache."""
    return [
        (arm.arm, arm.reconciliation.text, arm.reconciliation.agree is not False)
        for arm in results.arms
        if arm.reconciliation
    ]


def _expected(arm: ArmResult) -> Cell:
    figure = arm.reconciliation.expected_bytes if arm.reconciliation else None
    return Cell(size(figure), reason=why_unknown(arm))


def _figure(arm: ArmResult, channel: str) -> Cell:
    rows = arm.reconciliation.rows if arm.reconciliation else []
    figure = next((row for row in rows if row.channel == channel), None)
    if figure is None:
        return Cell(None, reason=why_unknown(arm))
    return Cell(size(figure.bytes), _difference(figure), figure.reason)


def _difference(figure: ChannelFigure) -> Message | None:
    if figure.difference is None or figure.agrees is None:
        return figure.reason if figure.bytes is not None else None
    return message("reconcile.off", off=figure.difference)


def _part(arm: ArmResult, name: str) -> Cell:
    rows = arm.reconciliation.parts if arm.reconciliation else []
    figure = next((row.bytes for row in rows if row.part == name), None)
    return Cell(size(figure), reason=why_unknown(arm))
