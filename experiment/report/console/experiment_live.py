"""An experiment on the console while it runs: a line per arm and cell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    CellStarted,
    ModelPrepared,
    PoolReserved,
    Reading,
    RepeatFinished,
    RequestFinished,
    StageEntered,
    TokenMapping,
    TurnStarted,
    WorkloadReady,
)
from experiment.experiments.findings import note
from experiment.measure.watcher import CellsWatcher
from experiment.report.facts.experiment import (
    Values,
    cell_label,
    cell_name,
    varied,
)
from experiment.report.facts.texts import Words, arm_name
from experiment.text import format_seconds
from experiment.text.messages import Message

if TYPE_CHECKING:
    from experiment.config.schema import Config
    from experiment.report.console.reporter import ConsoleReporter
    from experiment.runner.interleave import Turn

# Events that only a single run prints; the report shows them for one cell.
_SILENT = (ArmStarted, PoolReserved, Reading, RequestFinished, StageEntered, TokenMapping,
           WorkloadReady)  # fmt: skip


class ExperimentConsole(CellsWatcher):
    """Show a running experiment, after the console has shown the environment."""

    def __init__(self, console: ConsoleReporter) -> None:
        self.console = console
        self.t = console.t
        self._times: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
        self._cells: dict[int, CellStarted] = {}
        self._named: int | None = None
        self._here = 0
        self._began = False
        before = console.take_over(
            _SILENT,
            {
                ArmFailed: self._on_failed,
                ArmSkipped: self._on_skipped,
                CellStarted: self._on_cell,
                TurnStarted: self._on_turn,
                RepeatFinished: self._on_repeat,
                ArmFinished: self._on_arm,
                ModelPrepared: self._on_model,
            },
        )
        self._show_model = console.show_model
        self._show_failed, self._show_skipped = before[ArmFailed], before[ArmSkipped]
        self._known: str | None = None

    def introduce(self, name: str, cells: Sequence[Values], repeats: Sequence[int]) -> None:
        """Print the question, the varied parameters and the number of repeats."""
        out, t = self.console, self.t
        if out.brief:
            out.line(t.message(note(name, "question")), "bold")
            return
        out.section("section.experiment", title=t.message(note(name, "question")))
        out.line(t.message(note(name, "about")))
        for line in varied(cells):
            out.line(t.message(line))
        out.line(t("experiments.repeats", n=", ".join(map(str, sorted({*repeats})))))

    def begin(self, started: CellStarted, arm: str) -> None:
        """Show that an arm starts."""
        self._began = True
        self._begin_task("progress.cell_arm", started.index, started.of, arm)

    def begin_turn(self, configs: Sequence[Config], turn: Turn, repeat: int) -> None:
        """Show that an arm continues with a measured repeat; ``configs``: of all cells."""
        cell, arm = turn.place
        if self._began and turn.of > 1 and not self.console.brief:
            self.console.line(self.t("experiments.turns", n=turn.of), "dim")
        self._began = False
        repeats = configs[cell].experiment.repeats
        self._begin_task("progress.cell_turn", cell, len(configs), arm, n=repeat, repeats=repeats)

    def _begin_task(self, key: str, cell: int, of: int, arm: str, **numbers: int) -> None:
        self.console.begin_task(key, cell=cell + 1, of=of, arm=arm_name(self.t, arm), **numbers)

    def end(self) -> None:
        """Clear the status line."""
        self.console.end_task()

    def text(self, label: Words) -> str:
        """Translate a label to the language of the console."""
        return self.t.message(label) if isinstance(label, Message) else label

    def _on_cell(self, event: CellStarted) -> None:
        """Record the cell; it is named before its first line."""
        self._cells[event.index] = event
        self._here = event.index

    def _on_failed(self, event: ArmFailed) -> None:
        self._name_cell(self._here)
        self._show_failed(event)

    def _on_skipped(self, event: ArmSkipped) -> None:
        self._name_cell(self._here)
        self._show_skipped(event)

    def _name_cell(self, index: int) -> None:
        """Print the name of a cell before its first line.

        Failures before the first cell have none.
        """
        if index == self._named or index not in self._cells:
            return
        self._named = index
        event = self._cells[index]
        name, value = self.t.message(cell_name(event.values)), self.text(cell_label(event.values))
        self.console.line("")
        self.console.line(
            self.t("experiments.cell", n=index + 1, of=event.of, name=name, value=value), "bold"
        )

    def _on_turn(self, event: TurnStarted) -> None:
        self._here = event.cell

    def _on_repeat(self, event: RepeatFinished) -> None:
        if not event.warm_up:
            self._times[self._here, event.arm].append(event.generate_s)

    def _on_arm(self, event: ArmFinished) -> None:
        seconds = self._times[self._here, event.arm]
        if not seconds or self.console.brief:
            return
        times = {
            "median": format_seconds(median(seconds)),
            "low": format_seconds(min(seconds)),
            "high": format_seconds(max(seconds)),
        }
        name = arm_name(self.t, event.arm)
        self._name_cell(self._here)
        self.console.line(
            self.t("experiments.arm_done", arm=name, n=len(seconds), **times), indent=2
        )

    def _on_model(self, event: ModelPrepared) -> None:
        if event.weights_sha256 != self._known:
            self._known = event.weights_sha256
            self._show_model(event)
