"""Events of a run, its cells and its arms: how they start, end, fail and report progress."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from experiment.events.base import ArmEvent, EventBase, Int, Name
from experiment.events.workload import ModelPrepared, WorkloadReady
from experiment.text.messages import Message

SCHEMA_VERSION = 3  # 2: resumed runs; 3: arms of several cells interleave
OLDEST_SCHEMA = 1  # readable without conversion: later versions only add

# Within the range of a calendar: 300 years around 1970, less than a day from UTC.
WallNs = Annotated[int, Field(gt=-(2**63), lt=2**63)]
UtcOffset = Annotated[int, Field(gt=-86_400, lt=86_400)]


class RunStarted(EventBase):
    """First line of every log. ``wall_ns`` is the wall clock at ``t_ns``."""

    event: Literal["run_started"] = "run_started"
    schema_version: Int = SCHEMA_VERSION
    version: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    lang: str
    command: list[str]
    config: dict[str, Any]


class RunResumed(EventBase):
    """An interrupted run continues in another process, perhaps after a reboot.

    ``t_ns`` of later events uses the monotonic clock that showed ``t_ns`` at ``wall_ns``.
    ``missing`` lists the arms that had not finished: cell index (None in an ordinary run) and name.
    See :mod:`experiment.record.merged`.
    """

    event: Literal["run_resumed"] = "run_resumed"
    version: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    command: list[str]
    missing: list[tuple[Int | None, Name]]


class EnvironmentProbed(EventBase):
    """Facts about the machine; see :class:`experiment.machine.environment.Environment`."""

    event: Literal["environment"] = "environment"
    environment: dict[str, Any]


class CellStarted(EventBase):
    """A cell of an experiment starts: the events up to the next one belong to it.

    ``values`` are the varied parameters under the experiment's names, ``overrides`` the changed
    config keys, ``arms`` the arms that run in the cell.
    """

    event: Literal["cell"] = "cell"
    index: Int
    of: Int
    values: dict[Name, Int | float | str]
    overrides: dict[Name, Any]
    arms: list[Name]


class ArmStarted(ArmEvent):
    """The arm's process is running.

    ``variables`` are the environment variables of thread pools and GPU memory in that process,
    ``cores`` the CPUs that it may use. None if unknown, and in records of older versions.
    """

    event: Literal["arm_started"] = "arm_started"
    pid: Int
    variables: dict[str, str] | None = None
    cores: list[Int] | None = None


class MachineLimits(EventBase):
    """Peak rates of the machine with the run's threads, and the work of a token.

    ``read_bytes_per_s`` is measured on memory far larger than any cache. ``flops_per_s`` is
    measured on large matrices in the model's dtype; a multiply-add counts as two.
    ``matrix_parameters`` are the weights multiplied for every token, ``output_parameters`` those of
    the output projection. ``attention_width`` is query heads × head size × layers.
    ``sampled_parameters`` are those of the ``matrix_parameters`` needed only for tokens that are
    sampled from: the last layer except its keys and values. 0 in older records.
    """

    event: Literal["limits"] = "limits"
    threads: Int
    read_bytes_per_s: float
    flops_per_s: float
    matrix_parameters: Int
    output_parameters: Int
    attention_width: Int
    sampled_parameters: Int = 0


class ArmFinished(ArmEvent):
    """The arm ended successfully. Times are seconds; ``generate_s`` covers the whole workload."""

    event: Literal["arm_finished"] = "arm_finished"
    import_s: float
    load_s: float
    generate_s: float
    threads: Int
    device_name: str


class ArmFailed(ArmEvent):
    """A process failed; events that it emitted before are valid.

    ``arm`` is the arm, or ``environment`` or ``prepare`` for the stages before any arm.
    """

    event: Literal["arm_failed"] = "arm_failed"
    reason: Message
    exit_code: Int | None = None


class ArmSkipped(ArmEvent):
    """The arm was not started, and why."""

    event: Literal["arm_skipped"] = "arm_skipped"
    reason: Message


class Progress(EventBase):
    """Progress of a long task. For the console only; never written to the log."""

    event: Literal["progress"] = "progress"
    task: Message
    done: float
    total: float | None = None


class ModelDirectory(EventBase):
    """Directory of the prepared weights. Between processes only; never written to the log."""

    event: Literal["model_directory"] = "model_directory"
    path: str


class CellPrepared(EventBase):
    """Inputs of a cell. Between processes only; never written to the log.

    ``refused`` are arms that cannot run in the cell, and why.
    """

    event: Literal["cell_prepared"] = "cell_prepared"
    index: Int
    path: str
    model: ModelPrepared
    workload: WorkloadReady
    refused: dict[Name, Message]


class LayoutFound(EventBase):
    """The KV cache of one rank by vLLM. Between processes only; never written to the log.

    ``vllm`` is its version, ``groups`` the layers of each group, the fewest first, ``tokens`` and
    ``concurrency`` what it prints. ``refused``: why it does not start.
    """

    event: Literal["layout_found"] = "layout_found"
    vllm: str
    groups: list[Int]
    blocks: Int
    tokens: Int
    concurrency: float
    refused: str | None = None


class Check(EventBase):
    """Outcome of one check of the self-test; ``text`` describes it.

    ``passed`` is None if inconclusive.
    """

    event: Literal["check"] = "check"
    check: str
    passed: bool | None
    text: Message


class Notice(EventBase):
    """A notice for the user, such as background load.

    ``arm`` is the arm that it is about; None: the whole run.
    """

    event: Literal["notice"] = "notice"
    text: Message
    arm: Name | None = None


class RunFinished(EventBase):
    """Last line: how the run ended."""

    event: Literal["run_finished"] = "run_finished"
    status: Literal["complete", "incomplete", "left", "interrupted", "failed"]
