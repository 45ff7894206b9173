"""Results of a run on the console: comparison, verdicts, explanations, files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from experiment.analysis.metrics import Metric
from experiment.analysis.reconcile import ALLOWED
from experiment.analysis.results import (
    ArmResult,
    Claim,
    Gain,
    Preempting,
    Results,
    TokenComparison,
)
from experiment.report.console.lines import VERDICT_STYLES, Console
from experiment.report.facts.arm_figures import (
    GAINS,
    OF_BLOCKS,
    figure,
    has_blocks,
    slots,
    visible_metrics,
)
from experiment.report.facts.data_key import Keyed
from experiment.report.facts.engine import engine_facts, margin_text
from experiment.report.facts.page_text import said
from experiment.report.facts.sharing import explanations
from experiment.report.facts.texts import arm_name
from experiment.report.page.memory import channels, parts, sentences, watched
from experiment.report.page.parts import Row, Shown
from experiment.text import DASH
from experiment.text.messages import Message
from kvsim.core.prefix import PrefixStats

_Row = tuple[str | Text, Sequence[str | Text]]
_NOT_WHOLE = ("left", "interrupted", "incomplete", "failed")


def show_results(out: Console, results: Results, files: list[str]) -> None:
    """Print all results of a run."""
    if results.status in _NOT_WHOLE:
        style = "bold yellow"
        out.paragraph(out.t(f"console.status_{results.status}"), style)
    out.section("section.comparison")
    if out.quiet:  # otherwise printed when the arm ended
        show_missing(out, results)
    if results.arms:
        _show_comparison(out, results)
        if results.equal_reserved:
            out.line(out.t("console.reserved_equal", n=results.equal_reserved), "dim")
    _show_gains(out, results)
    show_tokens(out, results)
    for text in (*results.quantized, *results.kernels, *results.differences):
        out.paragraph(out.t.message(text))
    _show_prefix_cache(out, results)
    _show_engines(out, results)
    _show_simulator(out, results)
    show_preempting(out, results)
    _show_reconciliation(out, results)
    for arm in results.arms:
        for problem in arm.problems:
            out.line(out.t("console.problem", arm=arm_name(out.t, arm.arm),
                           text=out.t.message(problem)), "bold red")  # fmt: skip
    out.section("section.seen")
    out.paragraph(out.t.message(results.headline), "bold")
    for claim in results.claims:
        _show_claim(out, claim)
    if not out.quiet and results.status not in _NOT_WHOLE:
        _explain(out, results)
    out.section("section.files")
    for name in files:
        out.path(name)


def show_missing(out: Console, results: Results) -> None:
    """Print why arms did not finish."""
    for arm in results.arms:
        if arm.status != "finished" and arm.reason is not None:
            key = "console.arm_skipped" if arm.status == "skipped" else "console.arm_failed"
            name, reason = arm_name(out.t, arm.arm), out.t.message(arm.reason)
            out.line(out.t(key, arm=name, reason=reason), "yellow")


def _show_comparison(out: Console, results: Results) -> None:
    """Print a column for each arm, a row for each figure; slots at the peak of live slots."""
    rows = visible_metrics(results)
    lines = [
        _row(out.t.message(metric.label), *(_cell(metric, results, arm) for arm in results.arms))
        for metric in rows
    ]
    out.figures(out.t("console.figure"), _names(out, results.arms), lines)
    unable = not all(has_blocks(arm.arm) for arm in results.arms)
    if unable and any(metric.name in OF_BLOCKS for metric in rows):
        out.line(out.t("report.no_blocks"), "dim")


def _cell(metric: Metric, results: Results, arm: ArmResult) -> str:
    """A figure; bytes at the peak with their slots below."""
    text, of = figure(metric, results, arm) or DASH, slots(metric, results, arm)
    return text if of is None else f"{text}\n({of:,})"


def _row(label: str, *cells: str) -> _Row:
    return label, cells


def _names(out: Console, arms: list[ArmResult]) -> list[str]:
    return [arm_name(out.t, arm.arm) for arm in arms]


def _show_gains(out: Console, results: Results) -> None:
    """Print the ladder of arms: each compared with the one below, and their differences."""
    if not results.gains or out.quiet:
        return
    heads = (out.t.message(head) for head in GAINS.values())
    table = out.table(out.t("console.arm"), *heads, right=(1, 2, 3))
    for gain in results.gains:
        table.add_row(arm_name(out.t, gain.arm), *_gain_cells(out, gain))
    out.console.print(table)
    # Notes on the factors, and each reason for missing ones once.
    reasons = {gain.reason.key: gain.reason for gain in results.gains if gain.reason is not None}
    for reason in reasons.values():
        out.line(out.t("console.note", text=out.t.message(reason)), "yellow")
    if any(gain.products_unseparated for gain in results.gains):
        out.line(out.t("gains.not_separated"), "dim")
    out.line(out.t("gains.repeated" if results.repeated else "gains.once"), "dim")


def _gain_cells(out: Console, gain: Gain) -> list[str]:
    return [
        f"{gain.tokens_per_s:,.1f}",
        DASH if gain.mean_running is None else f"{gain.mean_running:.2f}",
        _factor(gain),
        out.t("gains.listed").join(map(out.t, gain.differing)),
    ]


def _factor(gain: Gain) -> str:
    """A factor; empty for the lowest rung, a dash if there is a reason."""
    if gain.factor is None:
        return DASH if gain.reason else ""
    return f"{gain.factor:.2f} ×"


def _show_prefix_cache(out: Console, results: Results) -> None:
    for arm in results.arms:
        cache = arm.prefix_cache
        if cache is None:
            continue
        stats = PrefixStats(**cache)
        hits, share = stats.hit_cross + stats.hit_batch, stats.hit_share
        name = arm_name(out.t, arm.arm)
        out.line(out.t("console.prefix_cache", arm=name, hits=hits, share=share, **cache))


def _show_engines(out: Console, results: Results) -> None:
    """Print figures reported by external engines."""
    for arm in results.arms:
        if arm.engine is None or out.quiet:
            continue
        table = out.table(out.t("console.engine_head", arm=arm_name(out.t, arm.arm)), "", right=())
        for fact in engine_facts(arm.engine):
            note = "" if fact.note is None else f"\n({out.t.message(fact.note)})"
            table.add_row(out.t.message(fact.label), fact.value + note)
        out.console.print(table)


def _show_simulator(out: Console, results: Results) -> None:
    """Print the difference between simulator and engines."""
    checks = [(arm.arm, arm.simulator) for arm in results.arms if arm.simulator is not None]
    if not checks:
        return
    out.line(out.t("simulator.title"), "bold")
    for arm, check in checks:
        style = {True: "green", False: "bold red", None: "dim"}[check.agrees]
        text = out.t("simulator.line", arm=arm_name(out.t, arm), text=out.t.message(check.text))
        out.paragraph(text, style, indent=2)


def show_preempting(out: Console, results: Results) -> None:
    """Print reasons and remedies of preemptions."""
    explained = [
        (arm_name(out.t, arm.arm), arm.preempting) for arm in results.arms if arm.preempting
    ]
    show_reasons(out, explained)


def show_reasons(out: Console, explained: Sequence[tuple[str, Preempting]]) -> None:
    """Print reasons and remedies of preemptions for arms or policies by name."""
    if explained:
        out.line(out.t("preemption.title"), "bold")
    for name, why in explained:
        _show_reason(out, name, why)


def _show_reason(out: Console, name: str, why: Preempting) -> None:
    text, before = out.t.message(why.text), out.t.message(why.before)
    out.paragraph(out.t("preemption.line", arm=name, text=text, before=before), indent=2)
    if why.remedies:
        out.paragraph(out.t("preemption.remedies"), indent=2)
    for remedy in why.remedies:
        out.paragraph(out.t.message(remedy.text), indent=4)
    for more in filter(None, (why.verdict, why.waited)):
        out.paragraph(out.t.message(more), indent=2)


def _show_reconciliation(out: Console, results: Results) -> None:
    """Print the KV bytes by each channel, the parts of the process's memory, and its stability."""
    found = sentences(results)
    if not found or out.quiet:
        return
    _show_rows(out, results, "reconcile.title", channels(results))
    out.line(out.t.message(ALLOWED), "dim")
    _show_rows(out, results, "reconcile.parts", parts(results))
    for name, text, agrees in found:
        line = out.t("console.problem", arm=arm_name(out.t, name), text=out.t.message(text))
        out.line(line, "green" if agrees else "yellow")
    _show_rows(out, results, "watch.title", watched(results))


def _show_rows(out: Console, results: Results, title: str, rows: Sequence[Row]) -> None:
    """Print rows that any arm has a figure of, and the reasons of missing figures."""
    known = [row for row in rows if any(cell.main is not None for cell in row.cells)]
    out.figures(out.t(title), _names(out, results.arms), [_line(out, row) for row in known])
    missing = [(row, cell) for row in rows for cell in row.cells if cell.main is None]
    _show_reasons(out, [(out.t.message(row.label), cell.reason) for row, cell in missing])


def _line(out: Console, row: Row) -> _Row:
    """Label and figures; a note below each figure, or at the label if all have the same."""
    label, figures = out.t.message(row.label), [_plain(out, cell.main) for cell in row.cells]
    notes = [_plain(out, cell.sub) if cell.main is not None else "" for cell in row.cells]
    common = {note for note, figure in zip(notes, figures, strict=True) if figure}
    if len(common) == 1 and common != {""}:
        label, notes = out.t("console.with_note", text=label, note=common.pop()), [""] * len(notes)
    pairs = zip(figures, notes, strict=True)
    return label, [f"{figure}\n({note})" if note else figure or DASH for figure, note in pairs]


def _plain(out: Console, text: Shown | None) -> str:
    words = text.text if isinstance(text, Keyed) else text
    return "" if words is None else said(out.t, words)


def _show_reasons(out: Console, unknown: list[tuple[str, Message | None]]) -> None:
    """Print a line for each reason of missing figures, with their names."""
    names: dict[str, dict[str, None]] = {}
    for name, reason in unknown:
        if reason is not None:
            names.setdefault(out.t.message(reason), {})[name] = None
    for text, listed in names.items():
        joined = out.t("console.listed").join(listed)
        out.line(out.t("console.no_figure", names=joined, reason=text), "dim")


def show_tokens(out: Console, results: Results) -> None:
    """Print whether the arms generated the same tokens."""
    comparisons = results.compared
    if comparisons and all(comparison.equal for comparison in comparisons):
        requests = comparisons[0].requests
        key = "console.tokens_equal_some" if results.not_compared else "brief.same_tokens"
        out.paragraph(out.t(key, arms=len(comparisons) + 1, n=requests), "green")
    else:
        _show_differences(out, comparisons)
    if results.not_compared:
        names = [arm_name(out.t, one.arm) for one in results.not_compared]
        text = results.not_compared[0].reason
        if text is not None:
            arms = out.t("console.listed").join(names)
            reason = out.t.message(text)
            out.paragraph(out.t("console.tokens_not_compared", arms=arms, reason=reason))


def _show_differences(out: Console, comparisons: list[TokenComparison]) -> None:
    for comparison in comparisons:
        if comparison.equal:
            continue
        params: dict[str, Any] = {
            "arm": arm_name(out.t, comparison.arm),
            "reference": arm_name(out.t, comparison.reference),
            "equal": comparison.equal_requests,
            "requests": comparison.requests,
        }
        if comparison.first_difference is None:  # equal, but requests are missing
            out.paragraph(out.t("console.tokens_missing", **params), "bold red")
            continue
        request, index = comparison.first_difference
        params |= {"request": request, "index": index + 1}  # counted from one
        if comparison.same_cache:
            out.paragraph(out.t("console.tokens_differ", **params), "bold red")
        else:
            share = comparison.equal_token_share
            out.paragraph(out.t("console.tokens_other_cache", share=share, **params), "yellow")
        if comparison.margin is not None:
            out.paragraph(out.t.message(margin_text(comparison.margin)), indent=2)


def _show_claim(out: Console, claim: Claim) -> None:
    line = Text()
    line.append(out.t(f"claim.{claim.id}.title"), style="bold")
    line.append("  ")
    line.append(out.t(f"verdict.{claim.verdict}"), style=VERDICT_STYLES[claim.verdict])
    out.console.print()
    out.console.print(line)
    out.paragraph(out.t.message(claim.text), indent=2)


def _explain(out: Console, results: Results) -> None:
    for name, seen in explanations(results).items():
        out.console.print()
        out.line(out.t(f"explain.{name}.title"), "bold")
        out.line(out.t(f"explain.{name}.text"), indent=2)
        for text in seen:
            out.line(out.t.message(text), indent=2)
