"""The section on instruments: the same KV bytes by each channel, and the parts of the process."""

from __future__ import annotations

from experiment.analysis.results import ArmResult, ChannelFigure, Results
from experiment.report.facts.key_paths import of_arm
from experiment.report.facts.keyed import Keys, Said
from experiment.report.facts.watched import WATCHED, watched_figure
from experiment.report.page.parts import Cell, Row, why_unknown
from experiment.text.messages import Message, message


def channels(keys: Keys, results: Results) -> list[Row]:
    """A row per channel that has to do with this device; the formula first."""
    arms = results.arms
    rows = [Row("channel.formula", [_expected(keys, arm) for arm in arms])]
    names = dict.fromkeys(
        row.channel for arm in arms if arm.reconciliation for row in arm.reconciliation.rows
    )
    rows += [Row(f"channel.{name}", [_figure(keys, arm, name) for arm in arms]) for name in names]
    return rows


def parts(keys: Keys, results: Results) -> list[Row]:
    """A row per part of the process's memory."""
    found = [arm.reconciliation for arm in results.arms if arm.reconciliation]
    names = dict.fromkeys(part.part for one in found for part in one.parts)
    return [
        Row(f"reconcile.{name}", [_part(keys, arm, name) for arm in results.arms]) for name in names
    ]


def watched(results: Results) -> list[Row]:
    """How much memory varied, how busy the machine was, what watching cost; unknown rows stay."""
    return [Row(f"watch.{key}", [_watched(arm, key) for arm in results.arms]) for key in WATCHED]


def _watched(arm: ArmResult, key: str) -> Cell:
    figure = watched_figure(key, arm)
    reason = figure.reason or why_unknown(arm)
    if figure.value is None:
        return Cell(None, figure.note, reason)
    path, value = f"results.arms[{arm.arm}]", figure.value
    main = message(value) if figure.is_key else Said(value, path, f"watched.{key}")
    note = Said(figure.note, path, f"watched_note.{key}") if figure.note else None
    return Cell(main, note, reason)


def sentences(results: Results) -> list[tuple[str, Message, bool]]:
    """(arm, what its channels say, whether they agree) of every arm that has a cache."""
    return [
        (arm.arm, arm.reconciliation.text, arm.reconciliation.agree is not False)
        for arm in results.arms
        if arm.reconciliation
    ]


def _expected(keys: Keys, arm: ArmResult) -> Cell:
    found = arm.reconciliation
    if found is None:
        return Cell(None, reason=why_unknown(arm))
    note = None if found.reserved else message("reconcile.at_largest")
    size = keys.number(of_arm(arm, "@.reconciliation.expected_bytes"), "bytes")
    return Cell(size, note, why_unknown(arm))


def _figure(keys: Keys, arm: ArmResult, channel: str) -> Cell:
    rows = arm.reconciliation.rows if arm.reconciliation else []
    figure = next((row for row in rows if row.channel == channel), None)
    if figure is None:
        return Cell(None, reason=why_unknown(arm))
    path = of_arm(arm, f"@.reconciliation.rows[{channel}]")
    size = keys.number(f"{path}.bytes", "bytes")
    return Cell(size, _difference(keys, path, figure), figure.reason)


def _difference(keys: Keys, path: str, figure: ChannelFigure) -> Message | Said | None:
    if figure.difference is None:
        return figure.reason if figure.bytes is not None else None
    key = "reconcile.off" if figure.agrees is not None else "reconcile.off_not_judged"
    return keys.said(key, off=f"{path}.difference")


def _part(keys: Keys, arm: ArmResult, name: str) -> Cell:
    rows = arm.reconciliation.parts if arm.reconciliation else []
    part = next((row for row in rows if row.part == name), None)
    if part is None or part.bytes is None:
        return Cell(None, reason=(part.reason if part else None) or why_unknown(arm))
    size = keys.number(of_arm(arm, f"@.reconciliation.parts[{name}].bytes"), "bytes")
    return Cell(size, message(f"channel.{part.channel}"))
