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
from experiment.report.facts.page_text import Cells
from experiment.report.facts.simulation import (
    Fact,
    limit_facts,
    memory_facts,
    refusals,
    trace_facts,
)
from experiment.report.facts.simulation_cells import (
    PolicyCell,
    brief_cells,
    cells_of,
    figure_cells,
    headline,
)
from experiment.report.facts.simulation_figures import GROUPS, rounding_note
from experiment.report.facts.simulation_sweeps import sweep_cells, sweeps_of
from experiment.text import DASH, Translator
from experiment.text.messages import Message

Data = Mapping[str, Any]
Tick = Callable[[int], None]
# Requests between updates of the progress.
_EVERY = 64
# Keys of facts that are printed without ``--details``.
_FACTS = ("rows", "arrivals", "unit_doubt", "edit", "rejected", "ignored", "tokens", "blocks",
          "max_length")  # fmt: skip


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
            self.cells(figure_cells(self.t, name, figures, cells))
        for table in (sweep_cells(self.t, sweep) for sweep in sweeps_of(data)):
            self.console.print()
            self.paragraph(table.title, "bold")
            self.cells(table)
        if note := rounding_note(cell.policy for cell in cells):
            self.line(self.t.message(note), "dim")
        self.speed(data)
        self.section("section.files")
        for file in files:
            self.path(file)

    def _show_brief(self, cells: list[PolicyCell], files: Sequence[str]) -> None:
        """Print a row for each policy, and the path of the page."""
        if self.quiet:
            return
        table = brief_cells(self.t, cells)
        self.figures(table.header[0], table.header[1:], ((row[0], row[1:]) for row in table.rows))
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

    def cells(self, cells: Cells) -> None:
        """Print a table with its title in place of an empty first head, and its notes."""
        rows = ((first, others) for first, *others in cells.rows)
        self.figures(cells.header[0] or cells.title, cells.header[1:], rows)
        for note in cells.notes:
            self.line(note, "dim")

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
