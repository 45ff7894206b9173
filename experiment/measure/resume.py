"""``--resume``: what a run that broke off still lacks, and whether it may go on here.

Side by side means: the same config, model, requests, machine and versions for every arm. What is
not the same is refused by name, before anything is written into the run.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from experiment import __version__
from experiment.arms.launch import VLLM, VLLM_ABSENT, VLLM_PYTHON, find_vllm
from experiment.config.reading import as_recorded, set_key
from experiment.config.schema import Config, make_config
from experiment.events import (
    SCHEMA_VERSION,
    ArmFailed,
    ArmFinished,
    ArmSkipped,
    EnvironmentProbed,
    ModelPrepared,
    RunFinished,
    RunResumed,
    WorkloadReady,
)
from experiment.experiments.base import cell_config, planned_cells
from experiment.experiments.registry import find_experiment
from experiment.files.bounded_reading import check_inside, expand_path
from experiment.files.locks import is_locked
from experiment.files.os_errors import os_reason
from experiment.files.scratch import PACKAGES
from experiment.machine.environment import Environment
from experiment.model.source import is_fetched
from experiment.record.checksums import LOGS, is_measured
from experiment.record.log import EVENTS_FILE, Record, read_record
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import Message, message
from experiment.text.redaction import in_values, without_private

T = TypeVar("T")
# An arm of a run: the index of its cell, None where the run is no experiment, and its name.
ArmKey = tuple[int | None, str]
_MODEL = (
    "architecture", "parameters", "dtype", "device", "eos_token_id", "config_sha256",
    "weights_sha256",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resumption:
    """A run that is to go on.

    ``missing`` are the arms that have not ended well and might, in the order in which they run;
    ``stretch`` counts from 1, the run as it was begun; ``size`` is that of the log, in bytes.
    """

    record: Record
    config: Config
    missing: tuple[ArmKey, ...]
    stretch: int
    size: int

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.record.directory

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done."""
        ended = self.record.of(RunFinished)
        return not self.missing and bool(ended) and ended[-1].status == "complete"

    def check_machine(self, environment: Environment) -> None:
        """Compare the machine and what is installed with those of the beginning.

        Raises:
            UserError: something that figures depend on is another one.
        """
        before = self.record.first(EnvironmentProbed)
        if before is None:
            return
        old = _machine(before.environment)
        new = _machine(environment.model_dump(mode="json"))
        for name in old:
            if old[name] != new[name]:
                self._refuse("machine", what=name, before=str(old[name]), now=str(new[name]))

    def check_prepared(
        self, model: ModelPrepared, workload: WorkloadReady, cell: int | None = None
    ) -> None:
        """Compare the model's files and the requests with those of the beginning.

        Raises:
            UserError: they are others.
        """
        old_model = _prepared(self.record, cell, ModelPrepared)
        old_workload = _prepared(self.record, cell, WorkloadReady)
        if old_model is not None:
            for name in _MODEL:
                before, now = getattr(old_model, name), getattr(model, name)
                if before != now:
                    self._refuse("model", what=name, before=str(before)[:12], now=str(now)[:12])
        if old_workload is not None:
            before = old_workload.model_dump(mode="json", exclude={"t_ns"})
            # A path in a prompt, or a secret, is not in the log as it was given.
            now = in_values(workload.model_dump(mode="json", exclude={"t_ns"}), without_private)
            keys = [name for name in before if before[name] != now[name]]
            if keys:
                self._refuse("requests", what=", ".join(keys))

    def _refuse(self, key: str, **params: str) -> None:
        raise user_error(f"error.resume.{key}", path=str(self.directory), **params)


def read_resumption(
    directory: Path, given: Config | None, overrides: Mapping[str, Any]
) -> Resumption:
    """Read a run that is to go on.

    Args:
        directory: the run directory.
        given: the config of the command line, where it names a file; else that of the run is taken.
        overrides: dotted keys of the command line, over that of the run.

    Raises:
        UserError: no run there, one in which a link leads elsewhere, one that another process is
            writing, one of another version, one whose files were changed, one with another
            config, one whose cells would be others now, or one that names a file or an interpreter
            which the command line does not.
    """
    _check_links(directory)
    if is_locked(directory / EVENTS_FILE):
        raise user_error("error.run_in_use", path=str(directory))
    size = _size(directory / EVENTS_FILE)
    record = read_record(directory)
    started, path = record.started, str(directory)
    for what, before, now in (
        ("version", started.version, __version__),
        ("schema_version", started.schema_version, SCHEMA_VERSION),
    ):
        if before != now:
            raise user_error("error.resume.machine", path=path, what=what, before=before, now=now)
    changed = [name for name in record.changed_files if is_measured(name)]
    if changed:
        text = message("error.changed", path=path, files=", ".join(changed))
        raise UserError(text, ExitCode.CHANGED)
    config = given or config_of(record, overrides)
    keys = list(_differences(started.config, as_recorded(config)))
    if keys:
        raise user_error("error.resume.config", path=path, keys=", ".join(keys))
    if given is None:
        _check_paths(config, overrides, path)
    missing = _missing(_planned(config, _device(record)), finished_arms(record), _left_out(record))
    python = any(word.startswith("--vllm-python") for word in started.command)
    if python and VLLM in {arm for _, arm in missing} and not os.environ.get(VLLM_PYTHON):
        raise user_error("error.resume.named", path=path, option="--vllm-python PATH")
    return Resumption(record, config, missing, len(record.of(RunResumed)) + 2, size)


def _check_paths(config: Config, overrides: Mapping[str, Any], path: str) -> None:
    """Check what a record names, which may be anybody's: files, and models to be downloaded.

    Raises:
        UserError: the command line does not name it too.
    """

    def is_foreign(name: str) -> bool:
        return expand_path(name).is_dir() or is_fetched(name, config)

    model, options = config.model.name, config.experiment.options
    named = options.get("models")
    models = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    for key, value, option in (
        ("workload.prompts_file", config.workload.prompts_file, "--prompts FILE"),
        ("experiment.options.trace", options.get("trace"), "--set experiment.options.trace=FILE"),
        ("model.name", is_foreign(model), "--model MODEL"),
        (
            "experiment.options.models",
            any(map(is_foreign, models)),
            "--set experiment.options.models=[...]",
        ),
    ):
        if value and key not in overrides:
            raise user_error("error.resume.named", path=path, option=option)


def _missing(
    planned: Sequence[ArmKey], done: Collection[ArmKey], left_out: Collection[ArmKey]
) -> tuple[ArmKey, ...]:
    """What has not ended well and might.

    An arm that runs again in one cell is asked again in all: what it did there may have been why
    it was spared elsewhere.
    """
    again = {
        arm for cell, arm in planned if (cell, arm) not in done and (cell, arm) not in left_out
    }
    return tuple(
        (cell, arm)
        for cell, arm in planned
        if (cell, arm) not in done and ((cell, arm) not in left_out or arm in again)
    )


def _size(path: Path) -> int:
    """Bytes of a file; 0 where there is none, which its reader will say."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_links(directory: Path) -> None:
    """Log and logs are appended to where they lie: nothing may be written outside of the run.

    Raises:
        UserError: a link in its place, or on the way there, leads elsewhere.
    """
    logs = directory / LOGS
    try:
        for path in chain((directory / EVENTS_FILE, logs), logs.rglob("*")):
            # Links to our packages are what a killed run leaves; they are made anew.
            if path.parent.name != PACKAGES:
                check_inside(directory, path, opened=True)
    except OSError as error:
        raise user_error(
            "error.out_unwritable", path=str(error.filename), why=os_reason(error)
        ) from error


def config_of(record: Record, overrides: Mapping[str, Any]) -> Config:
    """The config that a run was begun with; what has its default counts as never set."""
    data = _without_defaults(record.started.config, Config().model_dump(mode="json"))
    for key, value in overrides.items():
        set_key(data, key, value)
    return make_config(data)


def finished_arms(record: Record) -> frozenset[ArmKey]:
    """The arms that ended well."""
    ended = {(cell, e.arm) for cell, e in record.by_cell() if isinstance(e, ArmFinished)}
    failed = {(cell, e.arm) for cell, e in record.by_cell() if isinstance(e, ArmFailed)}
    return frozenset(ended - failed)


def _left_out(record: Record) -> frozenset[ArmKey]:
    """The arms that were skipped and would be again, on the same machine, model and requests.

    What an experiment spares and what an arm cannot do stays so; vLLM may have come meanwhile.
    """

    def has_come(reason: Message) -> bool:
        return reason.key in VLLM_ABSENT and not isinstance(find_vllm(device), Message)

    device = _device(record)
    return frozenset(
        (cell, event.arm)
        for cell, event in record.by_cell()
        if isinstance(event, ArmSkipped) and not has_come(event.reason)
    )


def _device(record: Record) -> str:
    """The device of a run, as far as it came to one."""
    probed = record.first(EnvironmentProbed)
    return str(probed.environment.get("device")) if probed else "cpu"


def _planned(config: Config, device: str) -> list[ArmKey]:
    """Every arm of a run in the order in which it runs."""
    if config.experiment.name is None:
        return [(None, arm) for arm in config.arm_names]
    cells = planned_cells(find_experiment(config.experiment.name), config, device)
    return [
        (index, arm)
        for index, cell in enumerate(cells)
        for arm in cell_config(config, cell).arm_names
    ]


def _prepared(record: Record, cell: int | None, kind: type[T]) -> T | None:
    """What the arms of a cell were given, of one kind of event, as far as the log knows."""
    events = (event for here, event in record.by_cell() if here == cell)
    return next((event for event in events if isinstance(event, kind)), None)


def _machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What of a machine the figures of an arm depend on."""
    cpu, system = environment.get("cpu") or {}, environment.get("system") or {}
    versions = {
        name: (environment.get(name) or {}).get("version")
        for name in ("python", "torch", "transformers")
    }
    return {
        "device": environment.get("device_name"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("usable_cores"),
        "architecture": system.get("machine"),
        **versions,
    }


def _differences(before: Any, now: Any, name: str = "") -> Iterable[str]:
    """Dotted keys whose values are not the same."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            inner = f"{name}.{key}" if name else str(key)
            yield from _differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield name


def _without_defaults(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            inner = _without_defaults(value, default)
            if inner:
                found[key] = inner
        elif value != default:
            found[key] = value
    return found
