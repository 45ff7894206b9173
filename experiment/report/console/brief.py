"""Console of a run: machine, a line for each arm, one table, claims, path of the report.

:class:`ConsoleReporter` (``--details``) and the report have all figures.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.text import Text

from experiment.analysis.metrics import METRICS
from experiment.analysis.results import Claim, Results
from experiment.config.schema import expand_arms
from experiment.events import (
    ArmFinished,
    ArmStarted,
    EnvironmentProbed,
    ModelPrepared,
    PoolReserved,
    Reading,
    RequestFinished,
    RunStarted,
    SecondPartRun,
    StageEntered,
    TokenMapping,
    WorkloadReady,
)
from experiment.events import Progress as ProgressEvent
from experiment.machine.environment import Environment
from experiment.report.console.experiment import show_brief, show_ended_badly
from experiment.report.console.lines import STYLES
from experiment.report.console.reporter import ConsoleReporter
from experiment.report.console.results import named, show_missing, show_preempting, show_tokens
from experiment.report.facts.arm_figures import figure
from experiment.report.facts.run_texts import token_sentences
from experiment.report.facts.texts import arm_name
from experiment.text import DASH, format_bytes
from experiment.text.messages import Message, message

# Reasons why an ordinary run does not show whether paging makes generation faster.
_NOT_FASTER = {
    "claim.throughput.busy": "brief.busy",
    "claim.throughput.unlike": "brief.unlike",
    "claim.throughput.mixed": "brief.mixed",
    "claim.throughput.mixed_one": "brief.mixed",
}
_LONG_S = 75  # of arms that are left: the whole run should take 90 s
_SILENT = (PoolReserved, Reading, RequestFinished, StageEntered, TokenMapping)
# Rows of the environment check that are shown in another line.
_SHOWN_ELSEWHERE = ("requirement.quiet", "requirement.quiet_now")


def run_console(
    lang: str, ascii_only: bool, quiet: bool = False, details: bool = False
) -> ConsoleReporter:
    """Create the console of a run: forty lines, or all figures with ``details``."""
    return (ConsoleReporter if details else BriefReporter)(lang, ascii_only, quiet)


class BriefReporter(ConsoleReporter):
    """Prints a run in forty lines of 80 columns, an experiment in 25; in one with ``quiet``."""

    brief = True

    def __init__(self, lang: str, ascii_only: bool = False, quiet: bool = False) -> None:
        super().__init__(lang, ascii_only, quiet)
        self.take_over(_SILENT, {SecondPartRun: self._on_second_part})
        self._arm: ArmStarted | None = None
        self._second: SecondPartRun | None = None
        self._arms: tuple[str, ...] = ()  # in the order in which they run
        self._requests = 0
        self._model = ""
        self._warned: set[str] = set()

    def section(self, key: str, **params: Any) -> None:
        """Print no heading."""

    def announce(self, key: str | None) -> None:
        """Print what comes next, before asking to continue."""
        super().announce(key)
        if key is not None and self.t.has(key):
            self.paragraph(self.t("brief.next", text=self.t(key)), "dim")

    def warn(self, text: Message, *, always: bool = False) -> None:
        """Print a note, once."""
        # Notes on possible changes to weights are omitted; preparation reports actual ones.
        if text.key not in self._warned and text.key != "model.maybe_random":
            super().warn(text, always=always)
        self._warned.add(text.key)

    def show_results(self, results: Results, files: list[str]) -> None:
        """Print the table, the claims and the path of the report."""
        self.end_task()
        if results.status != "complete":
            self.paragraph(self.t(f"report.status.{results.status}"), "bold yellow")
        if results.experiment is not None and not self.quiet:
            show_brief(self, results.experiment, files)
            return
        if self.quiet and results.experiment is None:
            show_missing(self, results)
        elif results.experiment is not None:
            show_ended_badly(self, results.experiment)
        elif results.arms:
            self._show_arms(results)
        self._show_problems(results)
        if not self.quiet and results.experiment is None:
            show_preempting(self, results)
        headline = self.t.message(results.headline)
        if self.quiet:
            report = [name for name in files if Path(name).name == "report.html"]
            self.console.print(Text(" ".join((headline, *report))), soft_wrap=True)
            return
        self.line("")
        self.paragraph(headline, "bold")
        self._show_claims(results)
        self.show_report(files)

    def _on_run_started(self, event: RunStarted) -> None:
        self._memory.started = event
        arms = event.config.get("run", {}).get("arms")
        self._arms = expand_arms(arms) if arms else ()
        self.line(f"{self.t('console.title')}: {self.t('console.goal')}", "bold")

    def _on_environment(self, event: EnvironmentProbed) -> None:
        probed = Environment.model_validate(event.environment)
        versions = {"Python": probed.python.version, "PyTorch": probed.torch.version,
                    "Transformers": probed.transformers.version,
                    # The version of a distribution with another name begins with that name.
                    "vLLM": (probed.vllm.version or "").rpartition("==")[2]}  # fmt: skip
        missing = self.t("console.not_found")
        listed = (f"{name} {version or missing}" for name, version in versions.items())
        self._facts(
            machine=self.t("brief.machine", device=probed.device_name, cores=probed.usable_cores,
                           memory=probed.ram.available_bytes),
            software=self.t("console.listed").join(listed),
            memory=self.t("brief.memory",
                          channel=self.t(f"channel.{probed.primary.channel.value}")),
        )  # fmt: skip
        for row in probed.requirements:
            if row.verdict in ("warn", "missing") and row.key not in _SHOWN_ELSEWHERE:
                what = self.t("console.problem", arm=self.t(row.key), text=row.found or DASH)
                advice = "" if row.advice is None else ". " + self.t.message(row.advice)
                self.line(self.t("console.note", text=what + advice), "yellow")

    def _on_model(self, event: ModelPrepared) -> None:
        self._model = self.t("brief.model", name=event.name, parameters=event.parameters,
                             dtype=event.dtype, slot=event.slot_bytes)  # fmt: skip
        if not self._warned & {"model.random_text", "model.maybe_random"}:
            for note in event.notes:
                self.warn(note)

    def show_model(self, event: ModelPrepared) -> None:
        """Print the model in a line."""
        super().show_model(event)
        self._facts(model=self._model)

    def _on_workload(self, event: WorkloadReady) -> None:
        self._requests = len(event.requests)
        lengths = [len(one.token_ids) for one in event.requests if one.sample_of is None]
        samples = len(event.requests) // len(lengths)
        new = max(one.max_new_tokens for one in event.requests)
        self._facts(
            model=self._model,
            requests=self.t("brief.samples" if samples > 1 else "brief.requests", n=len(lengths),
                            low=min(lengths), high=max(lengths), new=new,
                            length=event.max_length, samples=samples),
            budget=self.t("brief.budget", budget=event.budget_bytes, block_size=event.block_size),
        )  # fmt: skip
        self.line("")
        name, text = self.t("term.arm.name"), self.t("term.arm.text")
        self.line(self.t("console.problem", arm=name, text=text), "dim")

    def _on_arm_started(self, event: ArmStarted) -> None:
        self._arm = event

    def _on_second_part(self, event: SecondPartRun) -> None:
        self._second = event

    def _on_arm_finished(self, event: ArmFinished) -> None:
        done = self.t("brief.arm_done", arm=arm_name(self.t, event.arm), n=self._requests,
                      time=event.generate_s)  # fmt: skip
        if (more := self._second) is not None and more.arm == event.arm and more.reason is None:
            done = self.t("brief.second", text=done, requests=more.requests, running=more.running,
                          time=more.seconds)  # fmt: skip
        self.line(done, "green", indent=2)
        arms = self._arms[1:] if self._arms[:1] == (event.arm,) else ()
        left_s = len(arms) * (event.t_ns - self._arm.t_ns) / 1e9 if self._arm else 0
        if left_s > _LONG_S:
            minutes = math.ceil(left_s / 60)
            self.line(self.t("brief.slow", n=len(arms), minutes=minutes), "yellow", indent=2)

    def _on_progress(self, event: ProgressEvent) -> None:
        super()._on_progress(event)
        if self._progress.now is not None and self._arm is not None:
            task = self.t.message(event.task)
            named = self.t("console.problem", arm=arm_name(self.t, self._arm.arm), text=task)
            self._progress.now.update(self._task, description=named)

    def _facts(self, **texts: str) -> None:
        if self.quiet:
            return
        table = self.table("", "")
        for name, text in texts.items():
            table.add_row(Text(self.t(f"brief.{name}_name"), "bold"), text)
        self.console.print(table)

    def _show_arms(self, results: Results) -> None:
        arms = results.arms
        sizes = [[getattr(arm.peak_bytes, name, None) for name in _SIZES] for arm in arms]
        unit, scale = _unit(max((size for row in sizes for size in row if size), default=0))
        heads = [
            self.t("term.arm.name"),
            *(self.t(f"brief.head_{name}", unit=unit) for name in _SIZES),
        ]
        heads += [self.t(f"brief.head_{key}") for key in _FIGURES]
        table = self.table(*heads, right=range(1, len(heads)))
        for arm, row in zip(arms, sizes, strict=True):
            written = (_number(size, scale) for size in row)
            figures = (figure(METRICS[name], results, arm) or DASH for name in _FIGURES)
            table.add_row(arm_name(self.t, arm.arm), *written, *figures)
        self.console.print(table)
        self.line(self.t("brief.terms"), "dim")
        moved = next((arm.moved_bytes for arm in arms if arm.moved_bytes), None)
        if moved is not None:
            self.line(self.t("brief.growing", bytes=moved), "dim")

    def _show_problems(self, results: Results) -> None:
        """Print contradictions, and arms whose channels disagree."""
        for arm in results.arms:
            problems = [(text, "bold red") for text in arm.problems]
            if arm.simulator is not None and arm.simulator.agrees is False:
                problems.append((arm.simulator.text, "bold red"))
            if arm.reconciliation is not None and arm.reconciliation.agree is False:
                problems.append((arm.reconciliation.text, "yellow"))
            for text, style in problems:
                self.paragraph(named(self, arm.arm, text), style)

    def _show_claims(self, results: Results) -> None:
        table = self.table("", "")
        sentences = token_sentences(results)
        are_equal = bool(sentences and sentences[0][1])
        if are_equal:
            table.add_row(self._verdict("shown"), self.t.message(sentences[0][0]))
        for claim in results.claims:
            name, text = self.t(f"brief.{claim.id}"), self.t.message(_line(claim))
            line = self.t("console.problem", arm=name, text=text)
            table.add_row(self._verdict(claim.verdict), line)
        self.console.print(table)
        if not are_equal:
            show_tokens(self, results)

    def _verdict(self, verdict: str) -> Text:
        return Text(self.t(f"verdict.{verdict}"), STYLES[verdict])


def _line(claim: Claim) -> Message:
    """The figures of a claim, or the reason why there are none."""
    key, params = claim.text.key, claim.text.params
    if "factor" in params or (claim.id == "stability" and params):
        return Message(key=f"brief.{claim.id}_figures", params=params)
    return message(_NOT_FASTER[key]) if key in _NOT_FASTER else claim.text


def _unit(largest: int) -> tuple[str, int]:
    """Unit for the largest size, and its bytes."""
    unit = format_bytes(largest).rpartition(" ")[2]
    return unit, {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}.get(unit, 1)


def _number(size: int | None, scale: int) -> str:
    if size is None:
        return DASH
    return f"{size / scale:,.{0 if size % scale == 0 else 1 if size >= 100 * scale else 2}f}"


_SIZES = ("reserved", "allocated", "live")
_FIGURES = ("live_share", "fits", "tokens_per_s")
