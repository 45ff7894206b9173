"""Live console of a run, which handles all its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from experiment.analysis.results import Results
from experiment.events import (
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    ArmStarted,
    EnvironmentProbed,
    Event,
    ModelPrepared,
    Notice,
    PoolReserved,
    Reading,
    RequestFinished,
    RunResumed,
    RunStarted,
    StageEntered,
    TokenMapping,
    Usage,
    WorkloadReady,
)
from experiment.events import Progress as ProgressEvent
from experiment.machine.environment import Environment
from experiment.measure.watcher import Watcher
from experiment.replay.arm_events import PREPARATION
from experiment.report.console.display import ActiveDisplay
from experiment.report.console.environment import show_environment
from experiment.report.console.experiment import show_experiment
from experiment.report.console.lines import Console
from experiment.report.console.memory import MemoryLines
from experiment.report.console.pool import PoolView, TaskDisplay
from experiment.report.console.results import show_results
from experiment.report.facts.run_texts import sampling_message
from experiment.report.facts.texts import arm_name, preview
from experiment.text.errors import ExitCode

_PROMPT_CHARACTERS = 44


class ConsoleReporter(Console, Watcher):
    """Prints a run live.

    Args:
        lang: language of everything printed.
        ascii_only: no box drawing and no signs outside ASCII.
        quiet: only the results.
    """

    brief = False

    def __init__(self, lang: str, ascii_only: bool = False, quiet: bool = False) -> None:
        super().__init__(lang, ascii_only, quiet)
        self._memory = MemoryLines(self)
        self._times: list[float] = []
        self._spinner = "line" if ascii_only else "dots"
        self._progress: ActiveDisplay[TaskDisplay] = ActiveDisplay()
        self._pool_view = PoolView(self.t, ascii_only)
        self._task: Any = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            RunStarted: self._on_run_started,
            RunResumed: self._on_run_resumed,
            EnvironmentProbed: self._on_environment,
            ModelPrepared: self._on_model,
            WorkloadReady: self._on_workload,
            ArmStarted: self._on_arm_started,
            StageEntered: self._memory.enter,
            Reading: self._memory.read,
            PoolReserved: self._on_pool,
            TokenMapping: self._on_mapping,
            RequestFinished: self._on_request,
            ArmFinished: self._on_arm_finished,
            ArmFailed: self._on_failed,
            ArmSkipped: self._on_skipped,
            Notice: self._on_notice,
            ProgressEvent: self._on_progress,
        }

    def handle(self, event: Event) -> None:
        """Process and print an event."""
        # The sampler's thread may report between a stage and its readings.
        if not isinstance(event, Reading | ProgressEvent | Usage):
            self._memory.flush()
        if self.console.is_terminal and not self.quiet:
            self._pool_view.see(event)
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def take_over(
        self, silent: Iterable[type], handlers: Mapping[type, Callable[[Any], None]]
    ) -> dict[type, Callable[[Any], None]]:
        """Silence some events and replace handlers of others; return the previous handlers."""
        before = dict(self._handlers)
        for kind in silent:
            self._handlers.pop(kind, None)
        self._handlers.update(handlers)
        return before

    def section(self, key: str, **params: Any) -> None:
        """Print the heading of a part of the walkthrough."""
        if not self.quiet:
            self._memory.flush()
        super().section(key, **params)

    def announce(self, key: str | None) -> None:  # noqa: ARG002
        """Do nothing: the heading shows what comes next."""
        self.console.print()

    def begin_task(self, key: str, **params: Any) -> None:
        """Show an activity until :meth:`end_task`, on a terminal only."""
        if self.quiet or not self.console.is_terminal:
            return
        self.end_task()
        display = TaskDisplay(
            SpinnerColumn(self._spinner),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            refresh_per_second=8,
        )
        self._pool_view.clear()
        display.view = self._pool_view
        self._task = display.add_task(self.t(key, **params), total=None, amount="")
        self._progress.begin(display)

    def end_task(self) -> None:
        """Remove the progress display."""
        self._memory.flush()
        self._progress.end()

    def show_model(self, event: ModelPrepared) -> None:
        """Print the model of an experiment."""
        self._on_model(event)

    def show_results(self, results: Results, files: list[str]) -> None:
        """Print comparison, observations and paths."""
        self.end_task()
        if results.experiment is not None:
            show_experiment(self, results, results.experiment, files)
            return
        show_results(self, results, files)

    def show_report(self, files: Sequence[str]) -> None:
        """Print the path of the page, and the option for all figures."""
        for name in files:
            if Path(name).suffix == ".html" and Path(name).stem != "index":
                self.paragraph(self.t("brief.report"), "bold")
                self.path(name)
        self.line(self.t("brief.details"), "dim")

    def _on_run_started(self, event: RunStarted) -> None:
        self._memory.started = event
        self.line("")
        self.line(self.t("console.title"), "bold")
        self.line(self.t("console.goal"))

    def _on_run_resumed(self, event: RunResumed) -> None:
        # Only the clock is needed from here on.
        self._on_run_started(
            RunStarted(
                t_ns=event.t_ns, version=event.version, wall_ns=event.wall_ns,
                utc_offset_s=event.utc_offset_s, lang="", command=event.command, config={},
            )
        )  # fmt: skip
        self.line(self.t("console.resumed", n=len(event.missing)), "yellow")

    def _on_environment(self, event: EnvironmentProbed) -> None:
        environment = self._memory.environment = Environment.model_validate(event.environment)
        if not self.quiet:
            show_environment(self, environment)

    def _on_model(self, event: ModelPrepared) -> None:
        self.line(
            self.t(
                "console.model",
                name=event.name,
                architecture=event.architecture,
                parameters=event.parameters,
                dtype=event.dtype,
                device=event.device,
            )
        )
        self.line(self.t("console.slot_bytes", layers=event.layers, heads=event.kv_heads,
                         head_dim=event.head_dim, element=event.element_bytes,
                         slot=event.slot_bytes))  # fmt: skip
        for note in event.notes:
            self.warn(note)

    def _on_workload(self, event: WorkloadReady) -> None:
        t = self.t
        if self.quiet:
            return
        table = self.table(
            t("console.request"), t("console.prompt"), t("console.characters"),
            t("console.tokens_in"), t("console.new_tokens"), right=(2, 3, 4),
        )  # fmt: skip
        for request in (samples[0] for samples in event.samples()):
            table.add_row(
                str(request.id),
                preview(request.prompt, _PROMPT_CHARACTERS),
                f"{len(request.prompt):,}",
                f"{len(request.token_ids):,}",
                f"{request.max_new_tokens:,}",
            )
        self.console.print(table)
        self.line(t.message(sampling_message(event.sampling)))
        self.line(t("console.budget", budget=event.budget_bytes, length=event.max_length,
                    block_size=event.block_size))  # fmt: skip

    def _on_arm_started(self, event: ArmStarted) -> None:
        self._times = []
        self._memory.begin_arm()
        self.line("")
        self.line(arm_name(self.t, event.arm), "bold")
        about = f"arm_about.{event.arm.replace('.', '_')}"
        if self.t.has(about):
            self.line(self.t(about), "dim")
        self._memory.heads()

    def _on_pool(self, event: PoolReserved) -> None:
        if event.elastic:
            self.line(self.t("console.pool_elastic"), indent=2)
            return
        self.line(
            self.t(
                "console.pool",
                blocks=event.blocks,
                block_size=event.block_size,
                block=event.block_bytes,
                size=event.tensor_bytes,
            ),
            indent=2,
        )

    def _on_mapping(self, event: TokenMapping) -> None:
        params = event.model_dump(include={"request", "position", "logical", "physical", "offset"})
        self.line(self.t("console.mapping", **params), "green", indent=2)

    def _on_request(self, event: RequestFinished) -> None:
        service = event.latency_s - event.wait_s
        self._times.append(service)
        self.line(
            self.t(
                "console.request_done",
                request=event.request,
                tokens_in=event.prompt_tokens,
                tokens_out=len(event.tokens),
                time=service,
            ),
            indent=2,
        )
        self.line(Text(preview(event.text, 90), style="dim"), indent=4)

    def _on_arm_finished(self, event: ArmFinished) -> None:
        self._memory.largest()
        count = len(self._times)
        mean = sum(self._times) / count if count else None
        text = self.t("console.arm_done", total=event.generate_s, mean=mean, requests=count)
        self.line(text, "green", indent=2)

    def _on_failed(self, event: ArmFailed) -> None:
        if event.exit_code == ExitCode.USAGE and event.arm in PREPARATION:
            return  # the program ends with this line
        self._ended("console.arm_failed", event, "bold red")

    def _on_skipped(self, event: ArmSkipped) -> None:
        self._ended("console.arm_skipped", event, "yellow")

    def _ended(self, key: str, event: ArmFailed | ArmSkipped, style: str) -> None:
        name, reason = arm_name(self.t, event.arm), self.t.message(event.reason)
        self.line(self.t(key, arm=name, reason=reason), style)

    def _on_notice(self, event: Notice) -> None:
        self.warn(event.text)

    def _on_progress(self, event: ProgressEvent) -> None:
        display = self._progress.now
        if display is None:
            if event.task.key == "progress.compile_loops":  # may take minutes
                self.line(self.t.message(event.task), "dim")
            return
        amount = f"{100 * event.done / event.total:.0f} %" if event.total else ""
        display.update(
            self._task,
            description=self.t.message(event.task),
            completed=event.done,
            total=event.total,
            amount=amount,
        )
