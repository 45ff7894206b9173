"""The end of the walkthrough on the console: comparison, verdicts, explanations, files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from experiment.i18n import DASH, format_bytes
from experiment.report.engine_facts import engine_facts, margin_text
from experiment.report.texts import arm_name
from experiment.results import ArmResult, ChannelFigure, Claim, Results, TokenComparison
from kvsim.prefix import PrefixStats

if TYPE_CHECKING:
    from experiment.report.console import ConsoleReporter

_VERDICT_STYLES = {"shown": "bold green", "not_shown": "bold yellow", "untested": "dim"}
_NOT_WHOLE = ("left", "interrupted", "incomplete", "failed")
_EXPLANATIONS = ("paging", "cow", "prefix")


def show_results(out: ConsoleReporter, results: Results, files: list[str]) -> None:
    """Print everything that follows the last arm."""
    if results.status in _NOT_WHOLE:
        style = "bold yellow"
        out.paragraph(out.t(f"console.status_{results.status}"), style)
    out.section("section.comparison")
    if results.arms:
        out.console.print(comparison_table(out, results))
        if results.equal_reserved:
            out.line(out.t("console.reserved_equal", n=results.equal_reserved), "dim")
    _show_tokens(out, results.tokens)
    _show_prefix_cache(out, results)
    _show_engines(out, results)
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
        _explain(out)
    out.section("section.files")
    for name in files:
        out.paragraph(name, indent=2)


def comparison_table(out: ConsoleReporter, results: Results) -> Table:
    """A column for each arm, a row for each figure; slots at the peak of live slots."""
    table = out.table(out.t("console.figure"), right=())
    for arm in results.arms:
        table.add_column(arm_name(out.t, arm.arm), justify="right", overflow="fold")
    for key, write in _FIGURES.items():
        table.add_row(out.t(f"console.{key}"), *(write(arm) for arm in results.arms))
    return table


def _process_peak(arm: ArmResult) -> int | None:
    """Largest memory of the process by the best channel that has a figure."""
    for channel in ("nvml.process", "process.rss"):
        for row in arm.memory:
            if row.stage == "maximum" and row.channel == channel and row.bytes is not None:
                return row.bytes
    return None


def _show_prefix_cache(out: ConsoleReporter, results: Results) -> None:
    for arm in results.arms:
        found = arm.prefix_cache
        if found is None:
            continue
        stats = PrefixStats(**found)
        hits, share = stats.hit_cross + stats.hit_batch, stats.hit_share
        name = arm_name(out.t, arm.arm)
        out.line(out.t("console.prefix_cache", arm=name, hits=hits, share=share, **found))


def _show_engines(out: ConsoleReporter, results: Results) -> None:
    """What engines that are not ours say of themselves."""
    for arm in results.arms:
        if arm.engine is None or out.quiet:
            continue
        table = out.table(out.t("console.engine_head", arm=arm_name(out.t, arm.arm)), "", right=())
        for fact in engine_facts(arm.engine):
            note = "" if fact.note is None else f"\n({out.t.message(fact.note)})"
            table.add_row(out.t.message(fact.label), fact.value + note)
        out.console.print(table)


def _show_reconciliation(out: ConsoleReporter, results: Results) -> None:
    """The same KV bytes by every channel, then the parts of the process's memory."""
    arms = [arm for arm in results.arms if arm.reconciliation is not None]
    if not arms or out.quiet:
        return
    table = out.table(out.t("reconcile.title"))
    for arm in arms:
        table.add_column(arm_name(out.t, arm.arm), justify="right", overflow="fold")
    found = [arm.reconciliation for arm in arms if arm.reconciliation is not None]
    table.add_row(out.t("channel.formula"), *(format_bytes(r.expected_bytes) for r in found))
    for channel in dict.fromkeys(row.channel for r in found for row in r.rows):
        figures = [next((row for row in r.rows if row.channel == channel), None) for r in found]
        if any(figure is not None and figure.bytes is not None for figure in figures):
            cells = (_channel_cell(figure) for figure in figures)
            table.add_row(out.t(f"channel.{channel}"), *cells)
    table.add_section()
    for part in dict.fromkeys(part.part for r in found for part in r.parts):
        sizes = [next((p.bytes for p in r.parts if p.part == part), None) for r in found]
        label = out.t("reconcile.part", part=out.t(f"reconcile.{part}"))
        table.add_row(label, *(format_bytes(size) for size in sizes))
    table.add_section()
    for key, write in _WATCHED.items():
        written = [write(arm) for arm in arms]
        if any(cell != DASH for cell in written):
            table.add_row(out.t(f"watch.{key}"), *written)
    out.console.print(table)
    for arm, reconciliation in zip(arms, found, strict=True):
        if reconciliation.agree is not True:
            text = out.t.message(reconciliation.text)
            out.line(out.t("console.problem", arm=arm_name(out.t, arm.arm), text=text), "yellow")


def _channel_cell(figure: ChannelFigure | None) -> str:
    if figure is None or figure.bytes is None:
        return DASH
    if figure.difference is None or figure.agrees is None:
        return format_bytes(figure.bytes)
    return f"{format_bytes(figure.bytes)}\n({figure.difference * 100:+.2f} %)"


def _show_tokens(out: ConsoleReporter, comparisons: list[TokenComparison]) -> None:
    if comparisons and all(comparison.equal for comparison in comparisons):
        requests = comparisons[0].requests
        text = out.t("console.tokens_equal", arms=len(comparisons) + 1, requests=requests)
        out.paragraph(text, "green")
        return
    for comparison in comparisons:
        if comparison.equal:
            continue
        params = {
            "arm": arm_name(out.t, comparison.arm),
            "reference": arm_name(out.t, comparison.reference),
            "equal": comparison.equal_requests,
            "requests": comparison.requests,
        }
        if comparison.first_difference is None:  # what is there is equal, the rest is missing
            out.paragraph(out.t("console.tokens_missing", **params), "bold red")
            continue
        request, index = comparison.first_difference
        text = out.t("console.tokens_differ", request=request, index=index, **params)
        out.paragraph(text, "bold red")
        if comparison.margin is not None:
            out.paragraph(out.t.message(margin_text(comparison.margin)), indent=2)


def _show_claim(out: ConsoleReporter, claim: Claim) -> None:
    line = Text()
    line.append(out.t(f"claim.{claim.id}.title"), style="bold")
    line.append("  ")
    line.append(out.t(f"verdict.{claim.verdict}"), style=_VERDICT_STYLES[claim.verdict])
    out.console.print()
    out.console.print(line)
    out.paragraph(out.t.message(claim.text), indent=2)


def _explain(out: ConsoleReporter) -> None:
    for name in _EXPLANATIONS:
        out.console.print()
        out.line(out.t(f"explain.{name}.title"), "bold")
        out.line(out.t(f"explain.{name}.text"), indent=2)


def _slots(name: str) -> Callable[[ArmResult], str]:
    """Writer of a slot figure: bytes, and the slots that they are."""

    def write(arm: ArmResult) -> str:
        if arm.peak is None:
            return DASH
        slots = getattr(arm.peak, name)
        return f"{format_bytes(arm.bytes_of(slots))}\n({slots:,.0f})"

    return write


def _live_share(arm: ArmResult) -> str:
    return _percent(arm.peak.utilisation if arm.peak else None)


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share * 100:.1f} %"


def _count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f} s"


_FIGURES: dict[str, Callable[[ArmResult], str]] = {
    "reserved": _slots("reserved"),
    "allocated": _slots("allocated"),
    "live": _slots("live"),
    "wasted": _slots("wasted"),
    "live_share": _live_share,
    "fits": lambda arm: _count(arm.fits),
    "tensor_bytes": lambda arm: format_bytes(arm.tensor_bytes),
    "process_peak": lambda arm: format_bytes(_process_peak(arm)),
    "load_time": lambda arm: _seconds(arm.load_s),
    "generate_time": lambda arm: _seconds(arm.generate_s),
    "mean_time": lambda arm: _seconds(arm.mean_request_s),
    "tokens_per_s": lambda arm: DASH if arm.tokens_per_s is None else f"{arm.tokens_per_s:,.1f}",
}
_WATCHED: dict[str, Callable[[ArmResult], str]] = {
    "reserved_variation": lambda arm: _percent(arm.reserved_variation),
    "allocated_variation": lambda arm: _percent(arm.allocated_variation),
    "process_variation": lambda arm: _percent(arm.process_variation),
    "cpu_cores": lambda arm: DASH if arm.watch.cpu_cores is None else f"{arm.watch.cpu_cores:.2f}",
    "gpu_share": lambda arm: _percent(arm.watch.gpu_share),
    "gpu_memory_share": lambda arm: _percent(arm.watch.gpu_memory_share),
    "sampler_share": lambda arm: _percent(arm.watch.sampler_share),
}
