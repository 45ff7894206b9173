"""The file of a benchmark, ``engine.json``, rewritten after each round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from experiment.bench.profiles import Profile
from experiment.bench.rows import Row
from experiment.files.bounded_reading import MAX_JSON_BYTES, read_bounded
from experiment.files.os_errors import writing
from experiment.files.parse_memory import ParseBudget
from experiment.record.log import write_atomic
from experiment.text.errors import ExitCode, user_error
from experiment.text.messages import Message
from experiment.text.redaction import in_values, without_private

SCHEMA: Literal[1] = 1
FILE = "engine.json"


class Round(BaseModel):
    """A round of a workload: order of its arms, run directory, and limits of the machine."""

    workload: str
    round: int
    arms: list[str]
    directory: str
    limits: dict[str, Any] | None = None


class LeftOut(BaseModel):
    """An arm that ran in no round of a workload, or only in the first, and the reason."""

    workload: str
    arm: str
    rounds: int
    reason: Message


class BenchData(BaseModel):
    """All results of a benchmark; additional fields of older versions are ignored.

    ``vllm`` is its chosen mode and the rate of each mode, see :mod:`experiment.bench.vllm_mode`.
    """

    schema_version: Literal[1] = SCHEMA
    version: str
    started: str
    status: str = "running"
    seconds: float = 0.0
    command: list[str] = []
    settings: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    versions: dict[str, str | None] = {}
    model: dict[str, Any] = {}
    vllm: dict[str, Any] | None = None
    rounds: list[Round] = []
    left_out: list[LeftOut] = []
    rows: list[Row] = []
    profiles: list[Profile] = []
    warnings: list[Message] = []


def write_data(directory: Path, data: BenchData) -> Path:
    """Write the file atomically.

    Raises:
        UserError: it cannot be written.
    """
    path = directory / FILE
    # Paths of models and in reasons may be private.
    clean = in_values(data.model_dump(mode="json"), without_private)
    text = json.dumps(clean, ensure_ascii=False, indent=1, allow_nan=False)
    with writing(path, ExitCode.UNWRITABLE):
        write_atomic(path, text + "\n")
    return path


def read_data(path: Path) -> BenchData:
    """Read a file of this schema, or the one in a directory.

    Raises:
        UserError: the file is missing, or is no benchmark of this version.
    """
    file = path / FILE if path.is_dir() else path
    if not file.exists() or (path.is_dir() and not file.is_file()):  # a pipe has no end
        raise user_error("error.bench.no_file", path=str(file))
    text = read_bounded(file, MAX_JSON_BYTES)
    ParseBudget(file).reserve(text)
    try:
        return BenchData.model_validate_json(text)
    except ValidationError as error:
        raise user_error("error.bench.bad_file", path=str(file)) from error
