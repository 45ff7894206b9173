"""An experiment on the console while it runs: a line for each arm of each cell."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from experiment.events import (
    ArmFinished,
    ArmStarted,
    CellStarted,
    ModelPrepared,
    PoolReserved,
    Reading,
    RepeatFinished,
    RequestFinished,
    StageEntered,
    TokenMapping,
    WorkloadReady,
)
from experiment.i18n import format_seconds
from experiment.messages import Message, message
from experiment.report.experiment.words import (
    Values,
    about,
    axis_label,
    cell_label,
    cell_name,
    reading,
    title,
    value_label,
)
from experiment.report.svg import Words
from experiment.report.texts import arm_name

if TYPE_CHECKING:
    from experiment.report.console import ConsoleReporter

# What a single run tells in many lines; the report has it for one cell.
_SILENT = (ArmStarted, PoolReserved, Reading, RequestFinished, StageEntered, TokenMapping,
           WorkloadReady)  # fmt: skip


def _repeated(repeats: Sequence[int]) -> Message:
    """How often every cell is measured; those that only count are measured once."""
    most = max(repeats)
    once = repeats.count(1)
    if most > 1 and once:
        return message("experiments.repeats_fewer", n=most, cells=once, of=len(repeats))
    return (
        message("experiments.repeats_single")
        if most == 1
        else message("experiments.repeats", n=most)
    )


class ExperimentConsole:
    """Takes over a console that has shown the environment."""

    def __init__(self, console: ConsoleReporter) -> None:
        self.console = console
        self.t = console.t
        self._times: list[float] = []
        self._show_model = console.take_over(
            _SILENT,
            {
                CellStarted: self._on_cell,
                RepeatFinished: self._on_repeat,
                ArmFinished: self._on_arm,
                ModelPrepared: self._on_model,
            },
        )[ModelPrepared]
        self._known: str | None = None

    def introduce(self, name: str, cells: Sequence[Values], repeats: Sequence[int]) -> None:
        """What the experiment asks, what varies in it and how often it repeats each cell."""
        out, t = self.console, self.t
        out.section("section.experiment", title=t.message(title(name)))
        out.line(t.message(about(name)))
        out.line(t.message(reading(name)), "dim")
        for axis in cells[0]:
            shown = dict.fromkeys(self.text(value_label(axis, cell[axis])) for cell in cells)
            listed = t("console.listed").join(shown)
            out.line(t("experiments.varies", name=t.message(axis_label(axis)), values=listed))
        out.line(t.message(_repeated(repeats)))

    def begin(self, started: CellStarted, arm: str) -> None:
        """An arm is about to start."""
        self._times = []
        name = arm_name(self.t, arm)
        self.console.begin_task(
            "progress.cell_arm", cell=started.index + 1, of=started.of, arm=name
        )

    def end(self) -> None:
        """It has ended."""
        self.console.end_task()

    def text(self, label: Words) -> str:
        """A label in the language of the console."""
        return self.t.message(label) if isinstance(label, Message) else label

    def _on_cell(self, event: CellStarted) -> None:
        name, value = self.t.message(cell_name(event.values)), self.text(cell_label(event.values))
        self.console.line("")
        self.console.line(
            self.t("experiments.cell", n=event.index + 1, of=event.of, name=name, value=value),
            "bold",
        )

    def _on_repeat(self, event: RepeatFinished) -> None:
        if not event.warm_up:
            self._times.append(event.generate_s)

    def _on_arm(self, event: ArmFinished) -> None:
        if not self._times:
            return
        times = {
            "median": format_seconds(median(self._times)),
            "low": format_seconds(min(self._times)),
            "high": format_seconds(max(self._times)),
        }
        name = arm_name(self.t, event.arm)
        self.console.line(
            self.t("experiments.arm_done", arm=name, n=len(self._times), **times), indent=2
        )

    def _on_model(self, event: ModelPrepared) -> None:
        if event.weights_sha256 != self._known:
            self._known = event.weights_sha256
            self._show_model(event)
