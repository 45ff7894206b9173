"""Run a benchmark.

    environment ─ model ─ mode of vLLM (eager or compiled, thread binding)
        ─ round 0 of A, B, C ─ round 1 of A, B, C ─ ...

The file is written after each round, so that an interruption loses only that round.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path

from experiment import __version__
from experiment.arms.launch import VLLM, find_vllm, has_compiler, refusal_reason
from experiment.bench.data import BenchData, Round, write_data
from experiment.bench.plan import Options, base_config, with_run, with_vllm
from experiment.bench.rounds import (
    RoundContext,
    RoundResult,
    round_order,
    run_round,
    with_workload,
)
from experiment.bench.rows import Row
from experiment.bench.vllm_mode import (
    AUTO,
    COMPILED,
    EAGER,
    Mode,
    bindings,
    fastest_modes,
    kinds_of,
    mode_on,
)
from experiment.bench.workloads import Workload
from experiment.config.schema import Config
from experiment.events import ArmFailed, Event, Notice, RunStarted
from experiment.events.wall_clock import wall_clock
from experiment.files.os_errors import disk_errors
from experiment.machine.background_load import BUSY_CORES, load_average, others_cores
from experiment.machine.environment import Environment
from experiment.machine.packages import check_installed
from experiment.machine.thread_record import usable_cores
from experiment.record.directories import default_directory, make_run_directory
from experiment.record.log import EventLog
from experiment.runner.session import Session
from experiment.text.errors import UserError
from experiment.text.messages import Message, arm_message, message
from experiment.text.redaction import without_private
from experiment.workload.prepared import Prepared

Say = Callable[[Message], None]
Listener = Callable[[Event], None]
Shown = Callable[[Row], None]


class Bench:
    """A benchmark in progress.

    Args:
        options: of the benchmark.
        say: called with progress messages.
        listener: called with every event of every run.
        shown: called with each new row.
    """

    def __init__(self, options: Options, say: Say, listener: Listener, shown: Shown) -> None:
        check_installed()
        self.options = options
        self.data = BenchData(
            version=__version__,
            started=datetime.now().astimezone().isoformat(timespec="seconds"),
            command=[without_private(word) for word in options.command],
        )
        self._say, self._listener, self._shown = say, listener, shown
        self.written: Path | None = None
        self._began = time.monotonic()
        self.runs = make_run_directory(default_directory(within=options.out / "runs"))

    def run(self) -> None:
        """Run all rounds; :attr:`data` has the results, even after an error.

        Raises:
            UserError: before anything was measured, or the disk is full.
        """
        with disk_errors(self.options.out):
            self._run()

    def _run(self) -> None:
        try:
            environment, config, prepared = self._prepare()
        except (UserError, KeyboardInterrupt):
            shutil.rmtree(self.runs, ignore_errors=True)  # created by this benchmark
            raise
        try:
            self._describe(environment, config, prepared)
            context = RoundContext(environment, prepared, self._listener, self._starting)
            self._choose_vllm(context, config)
            self._rounds(context, config)
            self.data.status = "complete"
        except KeyboardInterrupt:
            self.data.status = "interrupted"
            raise
        finally:
            self._write()

    def _prepare(self) -> tuple[Environment, Config, Prepared]:
        """Probe the machine and prepare the model, in a separate run directory.

        Raises:
            UserError: the device, the model or vLLM's interpreter is missing.
        """
        directory = self.runs / "prepare"
        directory.mkdir()
        with EventLog(directory) as log:
            session = Session(directory, log, self._listener)
            session.emit(
                RunStarted(
                    version=__version__, lang=self.options.lang, command=["bench"], config={},
                    **wall_clock(),
                )
            )  # fmt: skip
            environment = session.probe_environment(self.options.device)
            if isinstance(environment, ArmFailed):
                raise UserError(environment.reason)
            self.options = self.options.for_device(environment.device)
            self.data.left_out = self.options.left_out()
            config = base_config(self.options, environment.device)
            refused = refusal_reason(config, environment)
            if refused is not None:
                raise UserError(refused)
            prepared = session.prepare(config, environment, ["bench"])
            if isinstance(prepared, ArmFailed):
                raise UserError(prepared.reason)
        return environment, config, prepared

    def _describe(self, environment: Environment, config: Config, prepared: Prepared) -> None:
        self.data.machine = {
            "cpu": environment.cpu.model_dump(mode="json"),
            "gpus": [gpu.name for gpu in environment.gpus if gpu.visible],
            "device": environment.device,
            "device_name": environment.device_name,
            "ram_bytes": environment.ram.total_bytes,
            "system": environment.system.os,
            "load_average": load_average(),
            "others_cores": others_cores(),
        }
        self.data.versions = {
            "python": environment.python.version,
            "torch": environment.torch.version,
            "transformers": environment.transformers.version,
            "numba": _version("numba"),
        }
        model = prepared.model
        self.data.model = model.model_dump(
            mode="json", include={"name", "source", "dtype", "parameters", "weights_sha256"}
        ) | {"name": without_private(model.name)}
        self.data.settings = {
            "threads": config.run.threads, "block_size": config.cache.block_size,
            "seed": self.options.seed, "tiny": self.options.tiny,
            "limit_s": self.options.limit_s, "rounds": self.options.rounds,
            "least": self.options.least, "poisoned": config.run.witness,
        }  # fmt: skip
        self._warn_if_busy(self.data.machine["others_cores"], "bench.busy_before")

    def _choose_vllm(self, context: RoundContext, config: Config) -> None:
        """Find the fastest mode of vLLM, if it is installed.

        Raises:
            UserError: as :func:`experiment.bench.vllm_mode.kinds_of`.
        """
        device, asked = context.environment.device, self.options.vllm_mode
        if VLLM not in self.options.arms or isinstance(find_vllm(device), Message):
            return
        kinds = kinds_of(asked, device, has_compiler())
        ways = bindings(device, config.run.threads, len(usable_cores() or []) or None)
        modes = [Mode(kind, way) for kind in kinds for way in ways]
        self._say(message("bench.vllm_trials", n=len(modes)))

        def attempt(workload: Workload, mode: Mode) -> tuple[float | None, Message | None]:
            here = with_workload(context, config, workload)
            run = with_vllm(with_run(config, [VLLM], workload), mode.eager, mode.bind)
            kind = EAGER if mode.eager else COMPILED
            where = self.runs / f"vllm-{workload.name}-{kind}-{mode.bind.replace(',', '+')}"
            result = run_round(where, here, run, workload.name, 0, [VLLM], limits=False)
            _raise_if_interrupted(result)
            row = next(iter(result.rows), None)
            if row is None:
                return None, message("bench.not_run")
            return row.useful_tokens_per_s, row.reason or next(iter(row.problems), None)

        trials = fastest_modes(modes, self.options.chosen, attempt)
        if asked == AUTO and len(kinds) == 1:
            trials["reason"] = message("note.vllm_eager").model_dump(mode="json")
        self.data.vllm = trials

    def _rounds(self, context: RoundContext, config: Config) -> None:
        begun, options = time.monotonic(), self.options
        if options.limit_s is not None:
            floor = message("bench.floor", n=options.least, minutes=options.limit_s / 60)
            self._listener(Notice(text=floor))
        took: dict[tuple[str, str], float] = {}
        for number in range(options.rounds):
            for workload in options.chosen:
                arms = round_order(options.arms_of(workload.name, number), number)
                expected = sum(took.get((workload.name, arm), 0.0) for arm in arms)
                if arms and options.begins(number, time.monotonic() - begun, expected):
                    self._say(message("bench.round", workload=workload.name, n=number + 1))
                    seconds = self._round(context, config, workload, number, arms)
                    took |= {(workload.name, arm): each for arm, each in seconds.items()}

    def _round(
        self,
        context: RoundContext,
        config: Config,
        workload: Workload,
        number: int,
        order: list[str],
    ) -> dict[str, float]:
        """Run a round and store its results; return the seconds of each arm's process."""
        context = with_workload(context, config, workload)
        name = f"{workload.name}-{number}"
        here = with_run(config, order, workload)
        if self.data.vllm is not None:
            mode = mode_on(self.data.vllm, workload.name)
            here = with_vllm(here, mode.eager, mode.bind)
        result = run_round(self.runs / name, context, here, workload.name, number, order)
        self.data.rows += result.rows
        for row in result.rows:
            self._shown(row)
            self._warn_if_busy(row.others_cores, "bench.busy")
        limits = result.limits.model_dump(mode="json") if result.limits else None
        self.data.rounds.append(
            Round(
                workload=workload.name, round=number, arms=order, limits=limits,
                directory=str(Path("runs", self.runs.name, name)),
            )
        )  # fmt: skip
        self._write()
        _raise_if_interrupted(result)
        self._profile(context, config, workload, number)
        return result.seconds

    def _profile(
        self, context: RoundContext, config: Config, workload: Workload, number: int
    ) -> None:
        arms = self.options.profiled(workload.name, number)
        if not arms:
            return
        here = with_run(config, arms, workload, profile=True)
        name = f"{workload.name}-{number}-profile"
        where = self.runs / name
        result = run_round(where, context, here, workload.name, number, arms, limits=False)
        self.data.profiles += result.profiles
        self._write()
        _raise_if_interrupted(result)

    def _starting(self, arm: str) -> None:
        named = message("bench.limits") if arm == "limits" else arm_message(arm)
        self._say(message("bench.arm", arm=named.model_dump()))

    def _warn_if_busy(self, cores: float | None, key: str) -> None:
        if cores is None or cores < BUSY_CORES:
            return
        warning = message(key, cores=cores)
        if not any(each.key == warning.key for each in self.data.warnings):
            self._say(warning)
        self.data.warnings.append(warning)

    def _write(self) -> None:
        """Write the data if there are rows; until then an older file is kept."""
        self.data.seconds = time.monotonic() - self._began
        if self.data.rows:
            self.written = write_data(self.options.out, self.data)


def _raise_if_interrupted(result: RoundResult) -> None:
    """Raise the interruption of a round, after its results were stored."""
    if result.interrupted:
        raise KeyboardInterrupt


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
