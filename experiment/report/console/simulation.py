"""Simulations on the console: inputs, progress, results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
    PolicyCell,
    brief_cells,
    cells_of,
    figure_cells,
    headline,
    sweep_cells,
    sweeps_of,
)
from experiment.report.facts.simulation_figures import GROUPS, rounding_note
from experiment.report.facts.texts import Cells, said
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
            table.add_row(Text(self.t.message(label), style="dim"), said(self.t, value))
        self.console.print(table)

    def show_simulation(self, data: Data, files: Sequence[str]) -> None:
        """Print the results of all policies, and the paths of files."""
        cells = cells_of(data)
        if self.details:
            self.section("section.sim_results")
        self.paragraph(self.t.message(headline(data)), "bold")
        lines = [(cell.policy, cell.error, "bold red") for cell in cells if cell.error is not None]
        lines += [(policy, text, "yellow") for policy, text in refusals(data)]
        for policy, text, style in lines:
            line = self.t("console.problem", arm=policy, text=self.t.message(text))
            self.paragraph(line, style)
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
        for sweep in sweeps_of(data):
            self.cells(sweep_cells(self.t, sweep))
        if note := rounding_note(cell.policy for cell in cells):
            self.line(self.t.message(note), "dim")
        for cell in data["cells"]:
            if speed := cell["speed"]:
                seconds, rate = speed["seconds"], speed["requests_per_second"]
                said = self.t("sim.speed", policy=cell["policy"], time=seconds, rate=rate)
                self.line(said, "dim")
        self.section("section.files")
        for file in files:
            self.path(file)

    def _show_brief(self, cells: list[PolicyCell], files: Sequence[str]) -> None:
        """Print a row for each policy, and the path of the page."""
        if self.quiet:
            return
        self.cells(replace(brief_cells(self.t, cells), title=""))
        if note := rounding_note(cell.policy for cell in cells):
            self.line(self.t.message(note), "dim")
        self.show_report(files)

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
    left = range(len(heads)) if what in ("policies", "formats") else (0,)
    texts = [[said(t, value) or DASH for value in row] for row in rows]
    out.cells(Cells("", heads, texts, tuple(left), notes=[*map(t.message, notes)]))
