"""The section on instruments: KV bytes by channel, and parts of the process's memory."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from experiment.analysis.results import ArmResult, Results
from experiment.analysis.watched import COST_LIMIT
from experiment.report.facts.bilingual import Bilingual
from experiment.report.facts.texts import keyed
from experiment.report.facts.values import decimal, percent, signed_size, size
from experiment.report.html.charts import Width, both_widths
from experiment.report.html.svg import Scale, drawing, line, tag, text
from experiment.report.page.parts import Cell, Row, Shown, at, why_unknown
from experiment.text.messages import Message, arm_message, message

_LEAST_SPAN = 0.02  # a smaller difference does not fill the chart


def channels(results: Results) -> list[Row]:
    """A row per channel of this device; the formula first."""
    arms = results.arms
    names = dict.fromkeys(
        row.channel for arm in arms if arm.reconciliation for row in arm.reconciliation.rows
    )
    return [
        Row(message("channel.formula"), [_expected(arm) for arm in arms]),
        *(Row(message(f"channel.{name}"), [_figure(arm, name) for arm in arms]) for name in names),
    ]


def summary(results: Results) -> Message | None:
    """Whether the channels agree on the KV cache; None if none is judged."""
    rows = [row for arm in results.arms if arm.reconciliation for row in arm.reconciliation.rows]
    judged = [row for row in rows if row.agrees is not None and row.difference is not None]
    wrong = {row.channel for row in judged if not row.agrees}
    if not judged:
        return None
    if wrong:
        return message("report.checks.differ", n=len(wrong))
    most = max(abs(row.difference or 0.0) for row in judged)
    return message("report.checks.agree", n=len({row.channel for row in judged}), off=most)


def costly(results: Results) -> Message | None:
    """What measuring took where it was more than allowed; None: nowhere."""
    shares = [arm.watch.sampler_share for arm in results.arms]
    above = [share for share in shares if share is not None and share >= COST_LIMIT]
    if not above:
        return None
    return message("report.checks.cost", n=len(above), most=max(above), limit=COST_LIMIT)


def dots(b: Bilingual, results: Results) -> Markup | None:
    """Difference of each channel from the formula, a row per arm; None if there is none."""
    arms = [(arm.arm, _differences(arm)) for arm in results.arms]
    arms = [(arm, rows) for arm, rows in arms if rows]
    if not arms:
        return None
    return both_widths(lambda width: _dots(b, arms, width))


def _differences(arm: ArmResult) -> list[tuple[float, bool]]:
    """Relative difference of each channel, and whether it is judged."""
    rows = arm.reconciliation.rows if arm.reconciliation else []
    return [(row.difference, row.agrees is not None) for row in rows if row.difference is not None]


def _dots(
    b: Bilingual, arms: Sequence[tuple[str, Sequence[tuple[float, bool]]]], width: Width
) -> Markup:
    known = [abs(value) for _, rows in arms for value, judged in rows if judged]
    most = max([_LEAST_SPAN, *known])  # beyond it others are in the table only
    left = 6.0 if width.narrow else 240.0
    x = Scale(most * 1.1, left, width.pixels - 24.0, bottom=-most * 1.1)
    parts: list[Markup] = []
    y = 20.0
    for arm, rows in arms:
        parts.append(text(b, 0, y + (0 if width.narrow else 4), arm_message(arm), class_="t"))
        y += 16 if width.narrow else 0
        parts.append(line(x.start, y, x.end, y, class_="grid"))
        parts += [
            tag("circle", cx=float(x(value)), cy=y, r=5,
                class_="point s0" if judged else "point s0 open")
            for value, judged in rows
            if abs(value) <= most
        ]  # fmt: skip
        y += 22
    bottom = y - 8
    parts.append(line(x(0), 8, x(0), bottom, class_="axis"))
    for value in (-most, 0.0, most):
        label = f"{value * 100:+.1f}\u00a0%" if value else "0"
        parts.append(text(b, x(value), bottom + 16, label, class_="t small middle num tick"))
    return drawing(
        b, f"dots-{width.name}", (width.pixels, bottom + 24), message("chart.dots.title"),
        message("chart.dots.desc"), parts, table="channels-data", class_=f"chart {width.name}",
    )  # fmt: skip


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
    columns = [_watched(arm) for arm in results.arms]
    names = columns[0] if columns else ()
    return [Row(message(f"watch.{name}"), [column[name] for column in columns]) for name in names]


def _watched(arm: ArmResult) -> dict[str, Cell]:
    """Cells of an arm, by row."""
    watch = arm.watch
    cores = "" if watch.usable_cores is None else f"{watch.usable_cores:g}"
    share, before, after = watch.sampler_share, watch.foreign_before, watch.foreign_after
    cost = message("memory.no_cost")
    if share is not None:
        key = "watch.within" if share < COST_LIMIT else "watch.beyond"
        cost = message(key, limit=COST_LIMIT, cores=cores)

    def cell(main: Shown | None, note: Message | None = None, why: Message | None = None) -> Cell:
        return Cell(main, note, why or why_unknown(arm))

    def channel(name: str | None) -> Message | None:
        return message(f"channel.{name}") if name else None

    def device(main: str | None) -> Cell:
        return cell(main, channel(watch.device_channel), watch.device_reason)

    return {
        "reserved_variation": cell(percent(arm.reserved_variation)),
        "allocated_variation": cell(percent(arm.allocated_variation)),
        "process_variation": cell(
            percent(arm.process_variation), channel(arm.process_variation_channel)
        ),
        "settled": cell(None) if watch.settled is None else cell(
            message("watch.yes" if watch.settled else "watch.no"),
            message("watch.waited", seconds=watch.waited_s),
        ),
        "baseline": device(size(watch.baseline_bytes)),
        "device_delta": device(signed_size(watch.device_delta_bytes)),
        "foreign": cell(
            None if before is None or after is None else f"{before:,} → {after:,}",
            why=watch.foreign_reason,
        ),
        "cpu_cores": cell(
            decimal(watch.cpu_cores),
            message("watch.of_cores", cores=cores) if watch.usable_cores else None,
            watch.cpu_reason,
        ),
        "others_cores": cell(decimal(watch.others_cores), why=watch.others_reason),
        "gpu_share": cell(percent(watch.gpu_share), why=watch.gpu_reason),
        "gpu_memory_share": cell(percent(watch.gpu_memory_share), why=watch.gpu_reason),
        "sampler_share": cell(percent(share), cost, cost),
    }  # fmt: skip


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
    if figure is None or figure.bytes is None:
        return Cell(None, reason=(figure.reason if figure else None) or why_unknown(arm))
    note = figure.reason
    if figure.difference is not None:
        key = "reconcile.off" if figure.agrees is not None else "reconcile.off_not_judged"
        note = message(key, off=figure.difference)
    return Cell(keyed(size(figure.bytes), at(arm, f"reconciliation.rows[{channel}].bytes")), note)


def _part(arm: ArmResult, name: str) -> Cell:
    rows = arm.reconciliation.parts if arm.reconciliation else []
    part = next((row for row in rows if row.part == name), None)
    if part is None or part.bytes is None:
        return Cell(None, reason=(part.reason if part else None) or why_unknown(arm))
    shown = keyed(size(part.bytes), at(arm, f"reconciliation.parts[{name}].bytes"))
    return Cell(shown, message(f"channel.{part.channel}"))
