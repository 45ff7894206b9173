"""Tests the instrument before anybody believes it: ``run_experiment.py selfcheck``.

A damaged paged cache must change tokens, and a known amount of memory must be seen by every
channel that claims to work, within its tolerance.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.text import Text

from experiment.environment import Environment
from experiment.events import (
    ArmFailed,
    Channel,
    Check,
    EnvironmentProbed,
    Event,
    Reading,
    Stage,
    StageEntered,
)
from experiment.memory.monitor import Monitor
from experiment.messages import ExitCode, UserError, message
from experiment.process import Child
from experiment.report.console import ConsoleReporter
from experiment.selfcheck_child import ARM

KNOWN_BYTES = 256 * 2**20
# Relative to the known amount. The whole system moves for other reasons, so its figure is shown
# and not judged; the high-water mark may have been higher before.
TOLERANCES = {
    Channel.RSS: 0.02,
    Channel.USS: 0.02,
    Channel.PSS: 0.02,
    Channel.NVML_PROCESS: 0.02,
    Channel.NVML_DEVICE: 0.02,
    Channel.TORCH_ALLOCATED: 0.001,
    Channel.TORCH_RESERVED: 0.02,
    Channel.CUDA_MEM_GET_INFO: 0.02,
}
_ON_GPU = (
    Channel.NVML_PROCESS,
    Channel.NVML_DEVICE,
    Channel.TORCH_ALLOCATED,
    Channel.TORCH_RESERVED,
    Channel.CUDA_MEM_GET_INFO,
)
_TIMEOUT_S = 300.0


def selfcheck(lang: str, ascii_only: bool) -> int:
    """Print what each check saw against what was there; non-zero when one failed.

    Raises:
        UserError: the checks could not be made at all.
    """
    console = ConsoleReporter(lang, ascii_only)
    console.section("section.selfcheck")
    with tempfile.TemporaryDirectory(prefix="pagedkv-") as scratch:
        log = Path(scratch) / "selfcheck.log"
        environment = _environment(log)
        checks: list[Check] = []
        for device in ("cpu", "cuda") if environment.device == "cuda" else ("cpu",):
            found, readings = _work(environment, device, log)
            # The control runs on the CPU whatever the device: once is enough.
            checks += found if device == "cpu" else []
            checks += memory_checks(readings, device)
    _show(console, checks)
    return ExitCode.OK if checks and all(check.passed for check in checks) else ExitCode.INCOMPLETE


def memory_checks(readings: list[Reading], device: str) -> list[Check]:
    """What each channel saw of the known amount between the two stages."""
    before = {r.channel: r for r in readings if r.stage is Stage.LOADED}
    after = {r.channel: r for r in readings if r.stage is Stage.CACHE_READY}
    checks = []
    for channel, tolerance in TOLERANCES.items():
        if (channel in _ON_GPU) != (device == "cuda") or channel not in after:
            continue
        low, high = before[channel].bytes, after[channel].bytes
        if low is None or high is None:
            continue  # it does not claim to work
        off = (high - low) / KNOWN_BYTES - 1
        text = message(
            "selfcheck.memory",
            channel=message(f"channel.{channel.value}").model_dump(),
            seen=high - low, known=KNOWN_BYTES, off=off, tolerance=tolerance,
        )  # fmt: skip
        passed = abs(off) <= tolerance
        checks.append(Check(check=f"memory.{channel.value}", passed=passed, text=text))
    return checks


def _environment(log: Path) -> Environment:
    with Child("experiment.probe", {"device": "auto"}, log, _TIMEOUT_S) as child:
        for event in child.events():
            if isinstance(event, EnvironmentProbed):
                return Environment.model_validate(event.environment)
            _raise_failure(event)
    raise UserError(message("failure.no_end"), ExitCode.INCOMPLETE)


def _work(environment: Environment, device: str, log: Path) -> tuple[list[Check], list[Reading]]:
    checks: list[Check] = []
    readings: list[Reading] = []

    def note(event: Event) -> None:
        if isinstance(event, Reading):
            readings.append(event)

    task = {"bytes": KNOWN_BYTES, "device": device}
    with Child("experiment.selfcheck_child", task, log, _TIMEOUT_S) as child:
        monitor = Monitor(ARM, child.pid, environment, note, interval_ms=20)
        try:
            for event in child.events():
                _raise_failure(event)
                note(event)
                if isinstance(event, Check):
                    checks.append(event)
                if isinstance(event, StageEntered):
                    monitor.mark(event.stage)
                    child.acknowledge()
        finally:
            monitor.stop()
    return checks, readings


def _raise_failure(event: Event) -> None:
    if isinstance(event, ArmFailed):
        raise UserError(event.reason, event.exit_code or ExitCode.INCOMPLETE)


def _show(console: ConsoleReporter, checks: list[Check]) -> None:
    t = console.t
    table = console.table(t("selfcheck.check"), t("console.verdict"))
    for check in checks:
        verdict = t("selfcheck.passed") if check.passed else t("selfcheck.failed")
        style = "green" if check.passed else "bold red"
        table.add_row(Text(t.message(check.text)), Text(verdict, style))
    console.console.print(table)
