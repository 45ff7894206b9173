"""The section on instruments: KV bytes by channel, and parts of the process's memory."""

from __future__ import annotations

from experiment.analysis.results import ArmResult, ChannelFigure, Results
from experiment.report.facts.data_key import keyed
from experiment.report.facts.values import size
from experiment.report.facts.watched import WATCHED, watched_figure
from experiment.report.page.parts import Cell, Row, at, why_unknown
from experiment.text.messages import Message, message


def channels(results: Results) -> list[Row]:
    """A row per channel of this device; the formula first."""
    arms = results.arms
    rows = [Row(message("channel.formula"), [_expected(arm) for arm in arms])]
    names = dict.fromkeys(
        row.channel for arm in arms if arm.reconciliation for row in arm.reconciliation.rows
    )
    rows += [
        Row(message(f"channel.{name}"), [_figure(arm, name) for arm in arms]) for name in names
    ]
    return rows


def parts(results: Results) -> list[Row]:
    """A row per part of the process's memory."""
    reconciliations = [arm.reconciliation for arm in results.arms if arm.reconciliation]
    names = dict.fromkeys(part.part for one in reconciliations for part in one.parts)
    return [
        Row(message(f"reconcile.{name}"), [_part(arm, name) for arm in results.arms])
        for name in names
    ]


def watched(results: Results) -> list[Row]:
    """Rows on variation of memory, utilisation, and cost of sampling, including unknown ones."""
    return [
        Row(message(f"watch.{key}"), [_watched(arm, key) for arm in results.arms])
        for key in WATCHED
    ]


def _watched(arm: ArmResult, key: str) -> Cell:
    figure = watched_figure(key, arm)
    reason = figure.reason or why_unknown(arm)
    if figure.value is None:
        return Cell(None, figure.note, reason)
    main = message(figure.value) if figure.is_key else figure.value
    return Cell(main, figure.note, reason)


def sentences(results: Results) -> list[tuple[str, Message, bool]]:
    """(arm, text of the reconciliation, whether channels agree) of every arm with a cache."""
    return [
        (arm.arm, arm.reconciliation.text, arm.reconciliation.agree is not False)
        for arm in results.arms
        if arm.reconciliation
    ]


def _expected(arm: ArmResult) -> Cell:
    reconciliation = arm.reconciliation
    if reconciliation is None:
        return Cell(None, reason=why_unknown(arm))
    note = None if reconciliation.reserved else message("reconcile.at_largest")
    shown = keyed(size(reconciliation.expected_bytes), at(arm, "reconciliation.expected_bytes"))
    return Cell(shown, note, why_unknown(arm))


def _figure(arm: ArmResult, channel: str) -> Cell:
    rows = arm.reconciliation.rows if arm.reconciliation else []
    figure = next((row for row in rows if row.channel == channel), None)
    if figure is None:
        return Cell(None, reason=why_unknown(arm))
    shown = keyed(size(figure.bytes), at(arm, f"reconciliation.rows[{channel}].bytes"))
    return Cell(shown, _difference(figure), figure.reason)


def _difference(figure: ChannelFigure) -> Message | None:
    if figure.difference is None:
        return figure.reason if figure.bytes is not None else None
    key = "reconcile.off" if figure.agrees is not None else "reconcile.off_not_judged"
    return message(key, off=figure.difference)


def _part(arm: ArmResult, name: str) -> Cell:
    rows = arm.reconciliation.parts if arm.reconciliation else []
    part = next((row for row in rows if row.part == name), None)
    if part is None or part.bytes is None:
        return Cell(None, reason=(part.reason if part else None) or why_unknown(arm))
    shown = keyed(size(part.bytes), at(arm, f"reconciliation.parts[{name}].bytes"))
    return Cell(shown, message(f"channel.{part.channel}"))
