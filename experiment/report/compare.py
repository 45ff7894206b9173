"""Two runs side by side on the console: what differs around them, each figure, and gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.text import Text

from experiment.compare.gate import Judged, tally
from experiment.compare.results import Comparison, Figure, Number, Row, Side, Unit
from experiment.i18n import DASH
from experiment.messages import Message
from experiment.report.compare_words import (
    change_text,
    counted,
    moment,
    place_words,
    title,
    verdict,
)
from experiment.report.parts_console import PartsConsole
from experiment.report.simulation.writing import written
from experiment.report.table import Table
from experiment.report.texts import arm_name, preview
from experiment.report.values import setting

_STYLES = {"better": "green", "worse": "bold red", "differs": "yellow", "unknown": "yellow",
           "passed": "green", "failed": "bold red", "not_comparable": "yellow"}  # fmt: skip
_VALUE_WIDTH = 44


class CompareConsole(PartsConsole):
    """Prints a comparison; ``everything`` includes the figures that are the same."""

    def __init__(self, lang: str, ascii_only: bool = False, everything: bool = False) -> None:
        super().__init__(lang, ascii_only)
        self.everything = everything

    def show(self, comparison: Comparison) -> None:
        """Both sides, notes, differences around the runs, and the figures."""
        t = self.t
        self.console.print(Text(t("compare.title"), style="bold cyan"))
        for name, side in (("left", comparison.left), ("right", comparison.right)):
            self.console.print(t(f"compare.{name}") + " " + self._side(side), soft_wrap=True)
        for note in comparison.notes:
            self.note(note)
        self._differences(comparison)
        self._figures(comparison)
        self._why(comparison.rows)
        self.console.print(Text(t.message(counted(comparison)), style="bold"))

    def note(self, note: Message) -> None:
        """Something that has to be known."""
        text = self.t("console.note", text=self.t.message(note))
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def gate(self, judged: Sequence[Judged]) -> None:
        """Each limit with what was found and its verdict."""
        t = self.t
        self.console.print()
        self.console.print(Text(t("compare.gate.title"), style="bold cyan"))
        names = ("figure", "limit", "allowed", "value", "verdict")
        table = Table(t, *(t(f"compare.gate.column_{name}") for name in names))
        for one in judged:
            unit: Unit = one.figure.unit if one.figure else "count"
            text = t(f"compare.gate.{one.verdict}")
            if one.reason is not None:
                text = t("compare.gate.because", verdict=text, reason=t.message(one.reason))
            bound = t(f"compare.gate.bound_{one.limit.bound}", value=one.limit.text)
            table.add_row(
                one.id, bound,
                exact(one.allowed, unit), exact(one.figure.value if one.figure else None, unit),
                Text(text, style=_STYLES[one.verdict]),
            )  # fmt: skip
        self.console.print(table)
        bad, limits = tally(judged)
        text = (
            t("compare.gate.broken", n=bad, of=limits) if bad else t("compare.gate.held", n=limits)
        )
        self.console.print(Text(text, style="bold red" if bad else "bold green"))

    def written(self, paths: Iterable[Path]) -> None:
        """Where everything was written."""
        for path in paths:
            self.console.print(self.t("compare.written", path=str(path)), soft_wrap=True)

    def baseline_written(self, path: Path, figures: int) -> None:
        """A baseline was made."""
        text = self.t("compare.baseline_written", path=str(path), n=figures)
        self.console.print(text, soft_wrap=True)

    def _side(self, side: Side) -> str:
        return self.t(f"compare.side_{side.kind}", name=side.name, when=moment(side),
                      version=side.version)  # fmt: skip

    def _differences(self, comparison: Comparison) -> None:
        if not comparison.differences:
            self.console.print(self.t("compare.no_differences"))
            return
        heads = (self.t(f"compare.{name}") for name in ("difference", "left", "right"))
        table = Table(self.t, *heads)
        for one in comparison.differences:
            label = f"{self.t(f'compare.group.{one.group}')} {one.name}"
            values = (preview(setting(value), _VALUE_WIDTH) for value in (one.left, one.right))
            table.add_row(label, *values)
        self.console.print(table)

    def _figures(self, comparison: Comparison) -> None:
        rows = [r for r in comparison.rows if self.everything or not _is_plain(r)]
        if not rows:
            return
        heads = ("figure", "left", "right", "change", "verdict_column")
        table = Table(self.t, *(self.t(f"compare.{head}") for head in heads), right=(1, 2, 3))
        before: tuple[str, str] | None = None
        for row in rows:
            where = (row.figure.place, row.figure.arm)
            if where != before:
                before = where
                table.add_row(self._where(row.figure), style="bold")
            unit = row.figure.unit
            table.add_row(
                self.t.message(title(row.figure)), _value(row.left, unit),
                _value(row.right, unit), change_text(row),
                Text(self.t.message(verdict(row)), _STYLES.get(row.verdict, "dim")),
            )  # fmt: skip
        self.console.print(table)
        left_out = comparison.count("same") if not self.everything else 0
        if left_out:
            self.console.print(Text(self.t("compare.left_out", n=left_out), style="dim"))

    def _where(self, figure: Figure) -> str:
        arm = arm_name(self.t, figure.arm)
        if not figure.place:
            return arm
        words = place_words(figure)
        place = words if isinstance(words, str) else self.t.message(words)
        return f"{place} · {arm}"

    def _why(self, rows: Sequence[Row]) -> None:
        """Each reason once, with how many figures it stands for."""
        found: dict[str, int] = {}
        for row in rows:
            if row.reason is not None:
                kind = self.t(f"compare.verdict.{row.verdict}")
                text = self.t(
                    "compare.gate.because", verdict=kind, reason=self.t.message(row.reason)
                )
                found[text] = found.get(text, 0) + 1
        for text, n in found.items():
            self.console.print("  " + self.t("compare.why", text=text, n=n))


def exact(value: Number | None, unit: Unit) -> str:
    """A value as a limit is written: bytes in full, nothing rounded away that decides."""
    if value is None:
        return DASH
    if float(value).is_integer():
        return f"{int(value):,}"
    # Twelve digits tell apart whatever does not count as the same.
    return f"{value:,}" if unit in ("bytes", "count") else f"{value:,.12g}"


def _is_plain(row: Row) -> bool:
    """Whether a row says nothing of its own: no change, or an arm that one run has not."""
    absent = row.reason is not None and row.reason.key == "compare.reason.not_here"
    return row.verdict == "same" or absent


def _value(figure: Figure | None, unit: Unit) -> str:
    if figure is None:
        return DASH
    text = written(figure.value, unit)
    if figure.span is None or figure.kind == "count":
        return text
    low, high = (written(value, unit) for value in figure.span)
    return f"{text}\n{low} … {high}"
