"""Tests the instrument before anybody believes it: ``run_experiment.py selfcheck``.

A damaged paged cache must change tokens. Known amounts of memory must be seen by every channel
that claims to work, within its tolerance: taken and given back, in a grandchild, for 50 ms
between two samples. And looking must not cost more than it may.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from experiment.children.selfcheck import ARM, Moment
from experiment.events import (
    ArmFailed,
    Check,
    EnvironmentProbed,
    Event,
    Reading,
    StageEntered,
)
from experiment.machine.background_load import min_background_load
from experiment.machine.environment import Environment
from experiment.memory.monitor import Monitor
from experiment.memory.process_tree import ProcessTree
from experiment.process.child import Child
from experiment.process.scratch_directory import scratch_directory
from experiment.record.log import EventLog
from experiment.selfcheck.memory import (
    INTERVAL_MS,
    KNOWN_BYTES,
    cost_check,
    known_amount_checks,
    process_checks,
)
from experiment.text.errors import ExitCode, UserError
from experiment.text.messages import Message, message

_TIMEOUT_S = 300.0


def check_instrument() -> list[Check]:
    """Check channels, sampler and cache on this machine; ``passed`` is None of what is not judged.

    Raises:
        UserError: the checks could not be made at all.
    """
    with scratch_directory() as scratch:
        return list(all_checks(scratch / "selfcheck.log"))


def all_checks(log: Path, device: str = "auto") -> Iterator[Check]:
    """Every check, those of a device once they are made: of the CPU, then of a GPU that works.

    Args:
        log: what the processes print; samples lie beside it for as long as they are needed.
        device: ``cuda`` asks for the checks of a GPU.

    Raises:
        UserError: the checks could not be made at all; there is no such GPU.
    """
    environment = _environment(log, device)
    for each in ("cpu", "cuda") if environment.device == "cuda" else ("cpu",):
        yield from _Examination(environment, each).run(log)


def _environment(log: Path, device: str) -> Environment:
    with Child("experiment.children.probe", {"device": device}, log, _TIMEOUT_S) as child:
        for event, _ in child.events():
            if isinstance(event, EnvironmentProbed):
                return Environment.model_validate(event.environment)
            _raise_failure(event)
    raise UserError(message("failure.no_end"), ExitCode.INCOMPLETE)


class _Examination:
    """Leads the child through its moments on one device and collects what was seen."""

    def __init__(self, environment: Environment, device: str) -> None:
        self._environment = environment
        self._device = device
        self._checks: list[Check] = []
        self._readings: list[Reading] = []
        self._not_reset: Message | None = None  # why the high-water mark could not be
        self._others: float | None = None  # cores that other programs keep busy

    def run(self, log: Path) -> list[Check]:
        """Every check of the device.

        Raises:
            UserError: the child failed.
        """
        task = {"bytes": KNOWN_BYTES, "device": self._device}
        scratch = tempfile.TemporaryDirectory(prefix="samples-", dir=log.parent)
        with (
            scratch as directory,
            EventLog(Path(directory)) as written,  # writing samples down is part of their cost
            Child("experiment.children.selfcheck", task, log, _TIMEOUT_S) as child,
        ):
            # Readings are taken at the moments alone, so that the spike lies between two.
            marker = Monitor(ARM, child.pid, self._environment, self._note, INTERVAL_MS)
            sampler = Monitor(ARM, child.pid, self._environment, written.write, INTERVAL_MS)
            try:
                for event, _ in child.events():
                    _raise_failure(event)
                    self._note(event)
                    if isinstance(event, StageEntered):
                        self._at(Moment(event.request or 0), event, marker, sampler, child.pid)
                        child.acknowledge()
            finally:
                marker.stop()
                sampler.stop()
        return self._checks + self._memory_checks()

    def _note(self, event: Event) -> None:
        if isinstance(event, Check):
            self._checks.append(event)
        if isinstance(event, Reading) and event.stage is not None:
            self._readings.append(event)

    def _at(
        self, moment: Moment, event: StageEntered, marker: Monitor, sampler: Monitor, pid: int
    ) -> None:
        if moment is Moment.CHURN_BEGINS:
            self._others = min_background_load()
            sampler.start()
            return
        if moment is Moment.CHURN_ENDED:
            sampler.stop()
            cores = self._environment.usable_cores or 1
            self._checks.append(cost_check(sampler.cost(), cores, self._device, self._others))
            return
        if moment is Moment.CHURN_STAGE:
            sampler.mark(event.stage, event.request)
            return
        if moment in (Moment.GRANDCHILD_IDLE, Moment.BEFORE_SPIKE):
            self._not_reset = ProcessTree(pid).reset_high_water() or self._not_reset
        marker.mark(event.stage, event.request)

    def _memory_checks(self) -> list[Check]:
        checks = known_amount_checks(self._readings, self._environment, self._device)
        if self._device == "cpu":
            checks += process_checks(self._readings, self._environment, self._not_reset)
        return checks


def _raise_failure(event: Event) -> None:
    if isinstance(event, ArmFailed):
        raise UserError(event.reason, event.exit_code or ExitCode.INCOMPLETE)
