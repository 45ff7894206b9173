"""Simulations on the console: inputs, progress, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from experiment.analysis.results import Preempting
from experiment.report.console.display import showing
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import show_reasons
from experiment.report.facts.simulation import (
    Fact,
    limit_facts,
    memory_facts,
    refusals,
    trace_facts,
)
from experiment.report.facts.simulation_cells import (
    Dash,
    PolicyCell,
    cells_of,
    dashes,
    visible_figures,
)
from experiment.report.facts.simulation_figures import GROUPS, SimulationFigure, rounding_note
from experiment.report.facts.simulation_headline import headline
from experiment.report.facts.simulation_sweeps import Sweep, sweeps_of
from experiment.report.facts.values import written
from experiment.text import DASH, Translator
from experiment.text.messages import Message

Data = Mapping[str, Any]
Tick = Callable[[int], None]
# Requests between updates of the progress.
_EVERY = 64
# Printed without ``--details``: facts by key, figures by name.
_FACTS = ("rows", "arrivals", "unit_doubt", "edit", "rejected", "ignored", "tokens", "blocks",
          "max_length")  # fmt: skip
_FIGURES = ("running_mean", "waste_of_allocated_share", "preemptions", "hits_first_share",
            "first_token_p50_s", "per_output_token_p50_s", "throughput_tokens_per_s")  # fmt: skip


class SimulationConsole(ConsoleReporter):
    """Prints simulations; see :class:`experiment.report.console.reporter.ConsoleReporter`.

    Args:
        details: all facts and figures; otherwise the most important ones.
    """

    def __init__(
        self, lang: str, ascii_only: bool = False, quiet: bool = False, details: bool = True
    ) -> None:
        super().__init__(lang, ascii_only, quiet)
        self.details = details

    def show_question(self, data: Data) -> None:
        """Print trace, memory and limits."""
        if self.quiet:
            return
        if not self.details:
            facts = [*trace_facts(data), *memory_facts(data)]
            self.facts([each for each in facts if each[0].key.rpartition(".")[2] in _FACTS])
            return
        for key, facts in (
            ("section.sim_trace", trace_facts(data)),
            ("section.sim_memory", memory_facts(data)),
            ("section.sim_limits", limit_facts(data)),
        ):
            self.section(key)
            self.facts(facts)

    def facts(self, facts: Sequence[Fact]) -> None:
        """Print labels and values in two columns, with line breaks in long values."""
        table = self.table("", "")
        for label, value in facts:
            shown = value if isinstance(value, str) else self.t.message(value)
            table.add_row(Text(self.t.message(label), style="dim"), shown)
        self.console.print(table)

    def show_simulation(self, data: Data, files: Sequence[str]) -> None:
        """Print the results of all policies, and the paths of files."""
        cells = cells_of(data)
        if self.details:
            self.section("section.sim_results")
        self.paragraph(self.t.message(headline(data)), "bold")
        for cell in cells:
            if cell.error is not None:
                self.line_of(cell.policy, cell.error, "bold red")
        for policy, text in refusals(data):
            self.line_of(policy, text, "yellow")
        for note in data["notes"]:
            self.warn(Message.model_validate(note))
        if data["interrupted"]:
            self.paragraph(self.t("sim.interrupted"), "bold yellow")
        if not self.quiet:
            found = data.get("preempting", ())
            whys = [(one["policy"], Preempting.model_validate(one["why"])) for one in found]
            show_reasons(self, whys)
        if not self.details:
            self._show_brief(cells, files)
            return
        for name, figures in GROUPS.items():
            self._group(name, figures, cells)
        for sweep in sweeps_of(data):
            self._sweep(sweep)
        if note := rounding_note(cell.policy for cell in cells):
            self.line(self.t.message(note), "dim")
        self.speed(data)
        self.section("section.files")
        for file in files:
            self.path(file)

    def _show_brief(self, cells: Sequence[PolicyCell], files: Sequence[str]) -> None:
        """Print a row for each policy, and the path of the page."""
        if self.quiet:
            return
        every = {each.name: each for group in GROUPS.values() for each in group}
        figures = visible_figures(tuple(every[name] for name in _FIGURES), list(cells))
        heads = (self.t.message(each.about.label) for each in figures)
        table = self.table(self.t("sim.page.policy"), *heads, right=range(1, len(figures) + 1))
        for cell in cells:
            table.add_row(cell.policy, *(written(cell.value(f), f.about.unit) for f in figures))
        self.console.print(table)
        if note := rounding_note(cell.policy for cell in cells):
            self.line(self.t.message(note), "dim")
        self.show_report(files)

    def line_of(self, policy: str, text: Message, style: str) -> None:
        """Print a line about a policy, even if quiet."""
        self.paragraph(self.t("console.problem", arm=policy, text=self.t.message(text)), style)

    def speed(self, data: Data) -> None:
        """Print the duration of the simulations."""
        for cell in data["cells"]:
            if cell["speed"]:
                self.line(self.t("sim.speed", policy=cell["policy"], time=cell["speed"]["seconds"],
                                 rate=cell["speed"]["requests_per_second"]), "dim")  # fmt: skip

    def _group(
        self, name: str, figures: tuple[SimulationFigure, ...], cells: list[PolicyCell]
    ) -> None:
        shown = visible_figures(figures, cells)
        rows = [
            (
                self.t.message(f.about.label),
                [written(cell.value(f), f.about.unit) for cell in cells],
            )
            for f in shown
        ]
        heads = [cell.policy for cell in cells]
        self.figures(self.t(f"sim.group.{name}"), heads, rows)
        about = f"sim.group.{name}_about"
        if self.t.has(about):
            self.line(self.t(about), "dim")
        if not self.quiet:
            for dash in dashes(figures, cells):
                self._dash(dash, len(shown))

    def _dash(self, dash: Dash, rows: int) -> None:
        """Print the reason of dashes in a table."""
        names = self.t("sim.listed").join(self.t.message(each.about.label) for each in dash.figures)
        if len(dash.figures) >= rows:
            names = self.t("sim.all_figures")
        self.line(self.t("sim.dash", policy=", ".join(dash.policies), names=names,
                         reason=self.t.message(dash.reason)), "dim")  # fmt: skip

    def _sweep(self, sweep: Sweep) -> None:
        title = self.t(f"sim.sweep.{sweep.name}.title")
        self.console.print()
        self.paragraph(title, "bold")
        labels = [sweep.label(name) for name in sweep.lines]
        names = [each if isinstance(each, str) else self.t.message(each) for each in labels]
        rows = [
            (
                written(x, sweep.axis_unit) + (" *" if x == sweep.mark else ""),
                [written(values[index], sweep.unit) for values in sweep.lines.values()],
            )
            for index, x in enumerate(sweep.axis)
        ]
        self.figures(self.t(f"sim.sweep.{sweep.name}.axis"), names, rows)
        self.line(self.t(f"sim.sweep.{sweep.name}.about"), "dim")
        if sweep.mark is not None:
            self.line(self.t("sim.sweep.own"), "dim")
        for name, x, error in sweep.errors:
            at = f"{name}, {written(x, sweep.axis_unit)}"
            self.line_of(at, error, "yellow")

    @contextmanager
    def progress(self, total: int) -> Iterator[Bar]:
        """Show progress and remaining time, on a terminal only."""
        shown = self.console.is_terminal and not self.quiet
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[ended]}"),
            TextColumn(self.t("sim.time_left")),
            TimeRemainingColumn(compact=True),
            console=self.console,
            transient=True,
            refresh_per_second=4,
            disable=not shown,
        )
        with showing(bar):
            yield Bar(bar, total, self.t)


class Bar:
    """One progress bar over all simulations of a run, with the requests of the current one."""

    def __init__(self, bar: Progress, total: int, t: Translator) -> None:
        self._bar, self._t = bar, t
        self._task = bar.add_task("", total=total, ended="")
        self._done = self._part = 0

    def begin(self, what: Message, weight: int, requests: bool = True) -> Tick:
        """Begin a part; ``weight`` is its size, in requests if ``requests``."""
        self._done += self._part
        self._part = weight
        done = self._done
        shown = -1

        def tick(ended: int) -> None:
            nonlocal shown
            if ended // _EVERY != shown:
                shown = ended // _EVERY
                text = self._t("sim.ended", n=ended, of=weight) if requests else ""
                self._bar.update(self._task, completed=done + ended, ended=text)

        self._bar.update(self._task, description=self._t.message(what))
        tick(0)
        return tick


def show_list(
    what: str,
    rows: Iterable[Sequence[str | Message]],
    notes: Iterable[Message],
    lang: str,
    ascii_only: bool,
) -> None:
    """Print accepted names with their facts, one per line, then the notes."""
    out = ConsoleReporter(lang, ascii_only)
    t = out.t
    heads = t(f"sim.list.{what}").split("|")
    table = out.table(
        *heads, right=() if what in ("policies", "formats") else tuple(range(1, len(heads)))
    )
    for row in rows:
        texts = (value if isinstance(value, str) else t.message(value) for value in row)
        table.add_row(*(text or DASH for text in texts))
    out.console.print(table)
    for note in notes:
        out.line(t.message(note), "dim")
