"""A whole benchmark, from the machine to the targets.

    environment ─ model ─ vLLM: eager or compiled, bound how?
        ─ round 0 of A, B, C ─ round 1 of A, B, C ─ ...
        ─ help, walkthrough ─ targets

After each round the file is written, so that an interruption loses that round alone.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import datetime
from importlib import metadata
from pathlib import Path

from experiment import __version__
from experiment.arms.launch import VLLM, refuse
from experiment.bench.data import BenchData, Round, Waiting, read_data, write_data
from experiment.bench.front_door import front_door
from experiment.bench.order import Pace, turned
from experiment.bench.plan import Options, base_config, with_run, with_vllm
from experiment.bench.rounds import Ground, RoundResult, grounded, run_round
from experiment.bench.rows import Row
from experiment.bench.targets import (
    DEVICE,
    DTYPE,
    HALF,
    MODEL,
    TARGETS,
    THREADS,
    compared,
    outcomes,
)
from experiment.bench.vllm_mode import faster_mode, mode_on
from experiment.bench.vllm_trials import why_not_faster
from experiment.bench.waiting import ARM, POLICIES, WORKLOADS, waiting_as
from experiment.bench.workloads import Workload
from experiment.config.schema import Config
from experiment.events import ArmFailed, Event, Notice, RunStarted
from experiment.events.wall_clock import wall_clock
from experiment.machine.background_load import BUSY_CORES, load_average, others_cores
from experiment.machine.environment import Environment
from experiment.machine.packages import check_installed
from experiment.record.directories import make_run_directory, place_of_now
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
        options: what was asked for.
        say: is told what happens.
        listener: is told every event of every run.
        shown: is told each row as it comes.
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
        self.runs = make_run_directory(place_of_now(within=options.out / "runs"))

    def run(self) -> None:
        """Run everything; :attr:`data` has what was found, however it ends.

        Raises:
            UserError: before anything was measured.
        """
        try:
            environment, config, prepared = self._prepare()
        except (UserError, KeyboardInterrupt):
            shutil.rmtree(self.runs, ignore_errors=True)  # it was empty when we took it
            raise
        try:
            self._describe(environment, config, prepared)
            ground = Ground(environment, prepared, self._listener, self._starting)
            if self.options.waiting:
                self._compare_waiting(ground, config)
            else:
                self._choose_vllm(ground, config)
                self._rounds(ground, config)
                self._front_door()
            self.data.status = "complete"
        except KeyboardInterrupt:
            self.data.status = "interrupted"
            raise
        finally:
            self._write()

    def _prepare(self) -> tuple[Environment, Config, Prepared]:
        """The machine and the model, in a run directory of their own.

        Raises:
            UserError: the device, the model or vLLM's interpreter is not there.
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
            self.options = self.options.on(environment.device)
            self.data.left_out = self.options.left_out()
            config = base_config(self.options, environment.device)
            refused = refuse(config, environment)
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

    def _front_door(self) -> None:
        self._say(message("bench.front_door"))
        self.data.front_door = front_door(self.runs, walkthrough=not self.options.tiny)

    def _choose_vllm(self, ground: Ground, config: Config) -> None:
        if VLLM not in self.options.arms:
            return
        finals = [each for each in self.options.chosen if VLLM in compared(each.name)]
        self.data.vllm = faster_mode(
            self.runs, ground, config, self._say, finals, self.options.vllm_mode
        )

    def _as_chosen(self, config: Config, workload: Workload) -> Config:
        """The config with vLLM's mode of the workload."""
        if self.data.vllm is None:
            return config
        mode = mode_on(self.data.vllm, workload.name)
        return with_vllm(config, mode.eager, mode.bind)

    def _rounds(self, ground: Ground, config: Config) -> None:
        begun, options = time.monotonic(), self.options
        pace = Pace(options.limit_s, options.rounds, options.least)
        needed = {each.name: options.needed(each.name) for each in options.chosen}
        self._say_how_long(pace, needed, 0, 0.0)
        for number in range(options.rounds):
            if number == 1:
                self._say_how_long(pace, needed, 1, time.monotonic() - begun)
            for workload in options.chosen:
                named, passed = options.arms_of(workload.name, number), time.monotonic() - begun
                some = needed[workload.name]
                arms = pace.arms_of_round(workload.name, named, number, passed, some)
                if not arms:
                    continue
                self._say(message("bench.round", workload=workload.name, n=number + 1))
                result = self._round(ground, config, workload, number, turned(arms, number))
                pace.took(workload.name, result.seconds)

    def _say_how_long(
        self, pace: Pace, needed: dict[str, set[str]], number: int, passed: float
    ) -> None:
        """Before the first round by what an earlier benchmark took, if there is one; then by it."""
        options = self.options
        if number == 0:
            if options.limit_minutes is not None:
                floor = message("bench.floor", n=options.least, minutes=options.limit_minutes)
                self._listener(Notice(text=floor))
            for workload, before in self._took_before().items():
                pace.took(workload, before)
            if not pace.seconds:
                return
        rounds, seconds = pace.outlook(options.arms_of, needed, number, passed)
        if seconds:
            self._listener(Notice(text=message("bench.outlook", n=rounds, time=seconds)))

    def _took_before(self) -> dict[str, dict[str, float]]:
        """Seconds of each arm in an earlier benchmark of the same model, device and threads."""
        try:
            before = read_data(self.options.out)
        except UserError:
            return {}
        if _kind(before) != _kind(self.data):
            return {}
        found: dict[str, dict[str, float]] = {}
        for row in before.rows:
            if row.wall_s is not None:
                found.setdefault(row.workload, {})[row.arm] = row.wall_s
        return found

    def _round(
        self, ground: Ground, config: Config, workload: Workload, number: int, order: list[str]
    ) -> RoundResult:
        ground = grounded(ground, config, workload)
        name = f"{workload.name}-{number}"
        here = with_run(self._as_chosen(config, workload), order, workload)
        result = run_round(self.runs / name, ground, here, workload.name, number, order)
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
        _go_on(result)
        self._profile(ground, config, workload, number)
        return result

    def _profile(self, ground: Ground, config: Config, workload: Workload, number: int) -> None:
        arms = self.options.profiled(workload.name, number)
        if not arms:
            return
        here = with_run(config, arms, workload, profile=True)
        name = f"{workload.name}-{number}-profile"
        where = self.runs / name
        result = run_round(where, ground, here, workload.name, number, arms, limits=False)
        self.data.profiles += result.profiles
        self._write()
        _go_on(result)

    def _compare_waiting(self, ground: Ground, config: Config) -> None:
        """The arms, under every policy in each round; no rows, another table."""
        options = self.options
        chosen = [each for each in options.chosen if each.name in WORKLOADS or not options.usual]
        arms = list(options.arms) if options.named else [ARM]
        for number in range(options.rounds):
            for workload in chosen:
                for policy in turned(list(POLICIES), number):
                    self._wait_as(policy, turned(arms, number), workload, number, ground, config)

    def _wait_as(
        self, policy: str, arms: list[str], workload: Workload, number: int, ground: Ground,
        config: Config,
    ) -> None:  # fmt: skip
        named = message(f"bench.policy.{policy}").model_dump()
        self._say(message("bench.waiting", policy=named, workload=workload.name, n=number + 1))
        where = self.runs / f"{workload.name}-{number}-{policy}"
        here = grounded(ground, config, workload)
        some = with_run(config, arms, workload)
        with waiting_as(POLICIES[policy]):
            result = run_round(where, here, some, workload.name, number, arms, limits=False)
        self.data.waiting += [
            Waiting(
                policy=policy, arm=row.arm, workload=workload.name, round=number,
                useful_tokens_per_s=row.useful_tokens_per_s,
            )
            for row in result.rows
        ]  # fmt: skip
        self._write()
        _go_on(result)

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

    def _as_targeted(self) -> bool:
        """Whether this is the model, the precision, the device and the threads of the targets."""
        data = self.data
        ran = (data.model.get("name"), data.model.get("dtype"), data.machine.get("device"))
        threads = data.settings.get("threads")
        return (*ran, threads) == (MODEL, DTYPE, DEVICE, THREADS) and not self.options.tiny

    def _unjudged(self) -> dict[str, Message]:
        """Targets against vLLM of which nobody can say that it ran in its faster mode, and why."""
        if self.data.vllm is None:
            return {}
        against = {each.id: each.workload for each in TARGETS if each.other == VLLM}
        found = {name: why_not_faster(self.data.vllm, each) for name, each in against.items()}
        return {name: why for name, why in found.items() if why is not None}

    def _write(self) -> None:
        """Write what there is; an older file stays until there is something."""
        data = self.data
        data.seconds = time.monotonic() - self._began
        half = data.model.get("dtype") == HALF
        of_gpu = half and data.machine.get("device") == "cuda" and not self.options.tiny
        found = outcomes(
            data.rows, data.profiles, data.front_door, self._as_targeted(), of_gpu,
            self._unjudged(),
        )  # fmt: skip
        data.targets = [outcome.to_json() for outcome in found]
        if data.rows or data.waiting:
            self.written = write_data(self.options.out, data)


def _go_on(result: RoundResult) -> None:
    """Raise what ended a round, once what it measured is safe."""
    if result.interrupted:
        raise KeyboardInterrupt


def _kind(data: BenchData) -> tuple[object, ...]:
    """What must be alike for the times of one benchmark to tell those of another."""
    model, settings = data.model, data.settings
    return (
        model.get("name"), model.get("dtype"), data.machine.get("device"),
        settings.get("threads"), settings.get("tiny"),
    )  # fmt: skip


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
