"""Results of a run on the console: comparison, verdicts, explanations, files."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from experiment.analysis.reconcile import ALLOWED
from experiment.analysis.results import Preempting, Results
from experiment.report.console.lines import STYLES, Console
from experiment.report.facts.arm_figures import GAINS, OF_BLOCKS, has_blocks, visible_metrics
from experiment.report.facts.run_texts import engine_facts, explanations, token_sentences
from experiment.report.facts.texts import Cells, Keyed, Words, arm_name, said
from experiment.report.page.memory import channels, parts, sentences, watched
from experiment.report.page.parts import Row, Shown, comparison
from experiment.text import DASH
from experiment.text.messages import Message
from kvsim.core.prefix import PrefixStats

_NOT_WHOLE = ("left", "interrupted", "incomplete", "failed")
_GOOD = {True: "green", False: "bold red", None: "dim"}


def show_results(out: Console, results: Results, files: list[str]) -> None:
    """Print all results of a run."""
    t = out.t
    if results.status in _NOT_WHOLE:
        out.paragraph(t(f"report.status.{results.status}"), "bold yellow")
    out.section("section.comparison")
    if out.quiet:  # otherwise printed when the arm ended
        show_missing(out, results)
    if results.arms:
        _show_comparison(out, results)
    if not out.quiet:
        _show_gains(out, results)
    show_tokens(out, results)
    for text in (*results.quantized, *results.kernels, *results.differences):
        out.paragraph(t.message(text))
    _show_engines(out, results)
    show_preempting(out, results)
    if not out.quiet:
        _show_reconciliation(out, results)
    for arm in results.arms:
        for problem in arm.problems:
            out.line(named(out, arm.arm, problem), "bold red")
    out.section("section.seen")
    out.paragraph(t.message(results.headline), "bold")
    for claim in results.claims:
        show_verdict(out, t(f"claim.{claim.id}.title"), claim.verdict)
        out.paragraph(t.message(claim.text), indent=2)
    if not out.quiet and results.status not in _NOT_WHOLE:
        for name, seen in explanations(results).items():
            show_verdict(out, t(f"explain.{name}.title"))
            for said in (t(f"explain.{name}.text"), *map(t.message, seen)):
                out.paragraph(said, indent=2)
    out.section("section.files")
    for name in files:
        out.path(name)


def show_verdict(out: Console, title: str, verdict: str | None = None) -> None:
    """Print a heading with a verdict."""
    line = Text.assemble((title, "bold"))
    if verdict is not None:
        line.append("  ").append(out.t(f"verdict.{verdict}"), style=STYLES[verdict])
    out.console.print()
    out.console.print(line)


def show_missing(out: Console, results: Results) -> None:
    """Print why arms did not finish."""
    for arm in results.arms:
        if arm.status != "finished" and arm.reason is not None:
            key = "console.arm_skipped" if arm.status == "skipped" else "console.arm_failed"
            name, reason = arm_name(out.t, arm.arm), out.t.message(arm.reason)
            out.line(out.t(key, arm=name, reason=reason), "yellow")


def _show_comparison(out: Console, results: Results) -> None:
    """Print a column for each arm, a row for each figure; slots at the peak of live slots."""
    _show_rows(out, results, "console.figure", comparison(results))
    unable = not all(has_blocks(arm.arm) for arm in results.arms)
    if unable and any(metric.name in OF_BLOCKS for metric in visible_metrics(results)):
        out.line(out.t("report.no_blocks"), "dim")
    if results.equal_reserved:
        out.line(out.t("console.reserved_equal", n=results.equal_reserved), "dim")


def _show_gains(out: Console, results: Results) -> None:
    """Print the ladder of arms: each compared with the one below, and their differences."""
    if not results.gains:
        return
    t, rows = out.t, list[list[str]]()
    for gain in results.gains:
        missing = DASH if gain.reason else ""
        rows.append(
            [
                arm_name(t, gain.arm),
                f"{gain.tokens_per_s:,.1f}",
                DASH if gain.mean_running is None else f"{gain.mean_running:.2f}",
                missing if gain.factor is None else f"{gain.factor:.2f} ×",
                t("gains.listed").join(map(t, gain.differing)),
            ]
        )
    # Each reason for missing factors once.
    reasons = {gain.reason.key: gain.reason for gain in results.gains if gain.reason is not None}
    notes = [t("console.note", text=t.message(reason)) for reason in reasons.values()]
    if any(gain.products_unseparated for gain in results.gains):
        notes.append(t("gains.not_separated"))
    notes.append(t("gains.repeated" if results.repeated else "gains.once"))
    heads = [t("term.arm.name"), *map(t.message, GAINS.values())]
    out.cells(Cells("", heads, rows, left=(0, 4), notes=notes))


def _show_engines(out: Console, results: Results) -> None:
    """Print figures of prefix caches and external engines, and the simulator's difference."""
    t = out.t
    for arm in results.arms:
        name, cache = arm_name(t, arm.arm), arm.prefix_cache
        if cache is not None:
            stats = PrefixStats(**cache)
            hits, share = stats.hit_cross + stats.hit_batch, stats.hit_share
            out.line(t("console.prefix_cache", arm=name, hits=hits, share=share, **cache))
        if arm.engine is not None and not out.quiet:
            rows = [
                [t.message(label), value + (f"\n({t.message(note)})" if note else "")]
                for label, value, note in engine_facts(arm.engine)
            ]
            out.cells(Cells("", [t("console.engine_head", arm=name), ""], rows, (0, 1)))
    checks = [(arm.arm, arm.simulator) for arm in results.arms if arm.simulator is not None]
    if checks:
        out.line(t("simulator.title"), "bold")
    for name, check in checks:
        out.paragraph(named(out, name, check.text), _GOOD[check.agrees], indent=2)


def show_preempting(out: Console, results: Results) -> None:
    """Print reasons and remedies of preemptions."""
    explained = [
        (arm_name(out.t, arm.arm), arm.preempting) for arm in results.arms if arm.preempting
    ]
    show_reasons(out, explained)


def show_reasons(out: Console, explained: Sequence[tuple[str, Preempting]]) -> None:
    """Print reasons and remedies of preemptions for arms or policies by name."""
    t = out.t
    if explained:
        out.line(t("preemption.title"), "bold")
    for name, why in explained:
        text, before = t.message(why.text), t.message(why.before)
        out.paragraph(t("preemption.line", arm=name, text=text, before=before), indent=2)
        if why.remedies:
            out.paragraph(t("preemption.remedies"), indent=2)
        for remedy in why.remedies:
            out.paragraph(t.message(remedy.text), indent=4)
        for more in filter(None, (why.verdict, why.waited)):
            out.paragraph(t.message(more), indent=2)


def _show_reconciliation(out: Console, results: Results) -> None:
    """Print the KV bytes by each channel, the parts of the process's memory, and its stability."""
    found = sentences(results)
    if not found:
        return
    _show_rows(out, results, "reconcile.title", channels(results), reasons=True)
    out.line(out.t.message(ALLOWED), "dim")
    _show_rows(out, results, "reconcile.parts", parts(results), reasons=True)
    for name, text, agrees in found:
        out.line(named(out, name, text), "green" if agrees else "yellow")
    _show_rows(out, results, "watch.title", watched(results), reasons=True)


def _show_rows(
    out: Console, results: Results, title: str, rows: Sequence[Row], *, reasons: bool = False
) -> None:
    """Print rows that any arm has a figure of, and the reasons of missing figures."""
    known = [row for row in rows if any(cell.main is not None for cell in row.cells)]
    names = [arm_name(out.t, arm.arm) for arm in results.arms]
    out.cells(Cells("", [out.t(title), *names], [_line(out, row) for row in known]))
    missing: dict[str, dict[str, None]] = {}
    for row in rows if reasons else ():
        for cell in row.cells:
            if cell.main is None and cell.reason is not None:
                text = out.t.message(cell.reason)
                missing.setdefault(text, {})[out.t.message(row.label)] = None
    for text, labels in missing.items():
        joined = out.t("console.listed").join(labels)
        out.line(out.t("console.no_figure", names=joined, reason=text), "dim")


def _line(out: Console, row: Row) -> list[str]:
    """Label and figures; a note below each figure, or at the label if all have the same."""
    label, figures = out.t.message(row.label), [_plain(out, cell.main) for cell in row.cells]
    notes = [_plain(out, cell.sub) if cell.main is not None else "" for cell in row.cells]
    common = {note for note, figure in zip(notes, figures, strict=True) if figure}
    if len(common) == 1 and common != {""}:
        label, notes = out.t("console.with_note", text=label, note=common.pop()), [""] * len(notes)
    pairs = zip(figures, notes, strict=True)
    return [label, *(f"{figure}\n({note})" if note else figure or DASH for figure, note in pairs)]


def _plain(out: Console, text: Shown | None) -> str:
    words: Words = "" if text is None else text.text if isinstance(text, Keyed) else text
    return said(out.t, words)


def named(out: Console, arm: str, text: Message) -> str:
    """A text about an arm."""
    return out.t("console.problem", arm=arm_name(out.t, arm), text=out.t.message(text))


def show_tokens(out: Console, results: Results) -> None:
    """Print whether the arms generated the same tokens."""
    for sentence, is_good in token_sentences(results):
        out.paragraph(out.t.message(sentence), _GOOD[is_good])
