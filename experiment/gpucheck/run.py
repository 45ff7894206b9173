"""Run the parts one after another, each with a time limit; a failed one does not stop the next.

minutes left × share ÷ shares left = limit of a part     unused time goes to later parts
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from experiment import __version__
from experiment.events import ArmFailed, ArmSkipped, Check, EnvironmentProbed, Event, Notice
from experiment.events.wall_clock import wall_clock
from experiment.files.os_errors import disk_errors
from experiment.gpucheck import parts
from experiment.gpucheck.child import INTERPRETED
from experiment.gpucheck.parts import Part, as_task
from experiment.gpucheck.result import (
    INTERRUPTED,
    NEEDS_GPU,
    NO_TIME,
    CheckResult,
    GpuCheck,
    PartResult,
)
from experiment.machine.environment import Environment
from experiment.process.child import Child, ChildStartError, ChildTimeoutError
from experiment.process.child_end import end_reason
from experiment.process.interrupts import shielded
from experiment.text.messages import Message, message

LOGS = "logs"
# Minimum time limit of a part; importing torch takes about as long.
_LEAST_S = 5.0


# Called with the parts and the minutes; the context yields a function to call after each part.
Progress = Callable[[Sequence[Part], float], AbstractContextManager[Callable[[PartResult], object]]]


def check_gpu(
    directory: Path,
    minutes: float = 8.0,
    progress: Progress = lambda *_: nullcontext(lambda _: None),
) -> GpuCheck:
    """Check the engine on this machine's GPU, or as far as possible without one.

    Args:
        directory: exists and is empty; logs of the parts are written to it.
        minutes: time limit of all parts together.
        progress: shows progress.

    Raises:
        UserError: the disk is full.
        KeyboardInterrupt: before the first part has ended; later an interruption ends the check,
            and the remaining parts are skipped.
    """
    with progress(parts.PARTS, minutes) as ended:
        examination = Examination(directory, minutes, parts.PARTS, ended)
        try:
            with disk_errors(directory):
                examination.run()
        except KeyboardInterrupt:
            if not examination.done:
                shutil.rmtree(directory / LOGS, ignore_errors=True)
                raise
    return examination.data


class Examination:
    """Run all parts and collect their reports.

    Args:
        directory: output directory of the check; logs are in its ``logs``.
        minutes: time limit of all parts together.
        ended: called with the result of each part.
    """

    def __init__(
        self,
        directory: Path,
        minutes: float,
        parts: Sequence[Part],
        ended: Callable[[PartResult], object],
    ) -> None:
        self._directory, self._minutes, self._parts, self._ended = directory, minutes, parts, ended
        self._began = wall_clock()
        self._environment: Environment | None = None
        self.done: list[PartResult] = []

    def run(self) -> None:
        """Run every part.

        Raises:
            KeyboardInterrupt: interrupted; :attr:`data` contains the finished parts.
        """
        (self._directory / LOGS).mkdir(exist_ok=True)
        deadline = time.monotonic() + 60 * self._minutes
        for place, part in enumerate(self._parts):
            left_s = deadline - time.monotonic()
            shares = sum(each.share for each in self._parts[place:] if not self._needs_gpu(each))
            limit_s = min(left_s, max(_LEAST_S, left_s * part.share / (shares or 1.0)))
            self.done.append(self._one(part, limit_s))
            self._ended(self.done[-1])

    @property
    def data(self) -> GpuCheck:
        """Results so far; parts that have not run are skipped."""
        left = self._parts[len(self.done) :]
        missing = [PartResult(part=p.name, verdict="skipped", reason=INTERRUPTED) for p in left]
        environment = self._environment
        return GpuCheck(
            program=__version__,
            **self._began,
            minutes=self._minutes,
            device=environment.device if environment else None,
            device_name=environment.device_name if environment else None,
            environment=environment,
            parts=(*self.done, *missing),
        )

    def _needs_gpu(self, part: Part) -> bool:
        """Whether the part needs a GPU, and there is none."""
        on_cpu = self._environment is not None and self._environment.device == "cpu"
        return part.needs_gpu and on_cpu

    def _one(self, part: Part, limit_s: float) -> PartResult:
        if self._needs_gpu(part):
            return PartResult(part=part.name, verdict="skipped", reason=NEEDS_GPU)
        if limit_s < _LEAST_S:
            return PartResult(part=part.name, verdict="skipped", reason=NO_TIME)
        began, events = time.monotonic(), list[Event]()
        try:
            failure = self._run_part(part, limit_s, events)
        except KeyboardInterrupt:
            if self.done:
                seconds = time.monotonic() - began
                self.done.append(self._result(part, limit_s, seconds, events, INTERRUPTED))
                self._ended(self.done[-1])
            raise
        return self._result(part, limit_s, time.monotonic() - began, events, None, failure)

    def _result(
        self, part: Part, limit_s: float, seconds: float, events: Sequence[Event],
        skipped: Message | None, failure: Message | None = None,
    ) -> PartResult:  # fmt: skip
        checks: list[CheckResult] = []
        for event in events:
            if isinstance(event, Check):
                # Check names may repeat on several devices.
                taken = sum(each.id.partition("#")[0] == event.check for each in checks)
                name = f"{event.check}#{taken + 1}" if taken else event.check
                checks.append(CheckResult(id=name, passed=event.passed, text=event.text))
            elif isinstance(event, EnvironmentProbed):
                self._environment = Environment.model_validate(event.environment)
            elif isinstance(event, ArmSkipped):
                skipped = event.reason
            elif isinstance(event, ArmFailed):
                failure = event.reason
        # A part passes with at least one passed check and no failed one.
        failed = [check for check in checks if check.passed is False]
        passed = sum(check.passed is True for check in checks)
        if failure is None and failed:
            counts = {"n": len(failed), "of": len(failed) + passed}
            failure = message("gpucheck.failed", first=failed[0].text.model_dump(), **counts)
        if failure is None and skipped is None and not passed:
            failure = message("gpucheck.nothing_checked")
        return PartResult(
            part=part.name,
            verdict="fail" if failure else "skipped" if skipped else "pass",
            interpreted=any(isinstance(e, Notice) and e.text == INTERPRETED for e in events),
            seconds=seconds,
            limit_s=limit_s,
            reason=failure or skipped or message("gpucheck.passed", n=passed),
            checks=tuple(checks),
        )

    def _run_part(self, part: Part, limit_s: float, events: list[Event]) -> Message | None:
        """Run a part to its end, or to its time limit; add its events, return why it failed."""
        log = self._directory / LOGS / f"{part.name}.log"
        device = self._environment.device if self._environment else None
        task = as_task(part, self._directory, limit_s, device)
        try:
            with Child("experiment.gpucheck.child", task, log, limit_s) as child:
                try:
                    for event, _ in child.events():
                        with shielded():  # an interrupt in between would return the event again
                            events.append(event)
                            child.mark_processed()
                except (ChildTimeoutError, KeyboardInterrupt) as ended:
                    child.kill()
                    events += [event for event, _ in child.unprocessed()]
                    if isinstance(ended, KeyboardInterrupt):
                        raise
                    return message("gpucheck.over_limit", limit=limit_s)
                code = child.wait()
                return end_reason(code) if code else None
        except ChildStartError as error:
            return error.text
