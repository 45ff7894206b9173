"""Baselines: the counted figures of a run, in a small file for version control.

{ "kind", "format"         what it is
  "from"                   the run, when and with which command it was made
  "machine", "versions", "model", "models", "config", "requests"      to report changes
  "figures" }              one line each: id → number
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from experiment.analysis.experiment_results import Number
from experiment.compare.facts import read_side
from experiment.compare.figures import parse_id
from experiment.compare.results import Figure, Side
from experiment.compare.sides import check_config, is_finite
from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.events import UtcOffset, WallNs
from experiment.files.bounded_reading import parse_json, read_bounded
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.text.errors import ExitCode, UserError, user_error
from experiment.text.messages import message

FORMAT = 1
KIND = "pagedkv-baseline"
# Long texts, which the digest of the requests covers.
_LEFT_OUT = ("workload.prompts",)


class _From(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    run: str
    status: str
    schema_version: int
    version: str
    wall_ns: WallNs
    utc_offset_s: UtcOffset
    command: list[str]


class _File(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    kind: Literal["pagedkv-baseline"]
    format: int
    origin: _From
    machine: dict[str, str | int | float | None] = {}
    versions: dict[str, str | None] = {}
    model: dict[str, str | int | None] = {}
    models: dict[str, dict[str, str | int | None]] | None = None
    config: dict[str, Any] = {}
    requests: dict[str, str]
    figures: dict[str, Number]


def read_any(path: Path) -> Side:
    """A side of a comparison: a run directory, or a baseline's file.

    Raises:
        UserError: neither is there, or it cannot be read.
    """
    return read_baseline(path) if path.is_file() else read_side(path)


def read_baseline(path: Path) -> Side:
    """Read a baseline.

    Raises:
        UserError: the file is missing, no baseline, of another format, or has an unknown metric.
    """
    data = _json(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise user_error("error.compare.no_baseline", path=str(path))
    if data.get("format") != FORMAT:
        raise user_error(
            "error.schema", path=str(path), found=str(data.get("format")), known=FORMAT
        )
    try:
        file = _File.model_validate({**data, "origin": data.get("from")})
    except ValidationError as error:
        # From the third part on, pydantic names the branches of a union.
        where = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
        raise _bad(path, where.replace("origin", "from", 1)) from error
    for name, value in file.figures.items():
        if not is_finite(value):
            raise _bad(path, f"figures.{name}")
    side = _side(path, file)
    try:
        check_config(side)
    except (TypeError, ValueError) as error:
        raise _bad(path, "config") from error
    return side


def _bad(path: Path, where: str) -> UserError:
    return user_error("error.compare.bad_baseline", path=str(path), where=where)


def _side(path: Path, file: _File) -> Side:
    origin = file.origin.model_dump(exclude={"run"})
    return Side(
        name=path.name, kind="baseline", **origin, machine=file.machine, versions=file.versions,
        model=file.model, models=file.models, config=file.config, requests=file.requests,
        figures={name: _figure(name, value) for name, value in file.figures.items()},
    )  # fmt: skip


def write_baseline(path: Path, side: Side) -> int:
    """Write the counted figures of a run; return their number.

    Raises:
        UserError: the run is incomplete or has no counts, or the file cannot be written.
    """
    if not side.whole:
        raise user_error("error.compare.baseline_incomplete", name=side.name)
    check_unchanged(side)
    figures = {
        name: figure.value
        for name, figure in side.figures.items()
        if figure.kind == "count" and figure.value is not None
    }
    if not figures:
        raise user_error("error.compare.baseline_incomplete", name=side.name)
    origin = {name: getattr(side, name) for name in _From.model_fields if name != "run"}
    data = {
        "kind": KIND,
        "format": FORMAT,
        "from": {"run": side.name, **origin},
        "machine": side.machine,
        "versions": side.versions,
        "model": side.model,
        "models": side.models,
        "config": {k: v for k, v in side.config.items() if k not in _LEFT_OUT},
        "requests": side.requests,
        "figures": figures,
    }
    with writing(path):
        write_atomic(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return len(figures)


def check_unchanged(side: Side) -> None:
    """Refuse a run whose files were changed after it was written.

    Raises:
        UserError: a file was changed; exit code ``CHANGED``.
    """
    if side.changed_files:
        files = ", ".join(side.changed_files)
        raise UserError(message("error.changed", path=side.name, files=files), ExitCode.CHANGED)


def _figure(name: str, value: Number) -> Figure:
    arm, metric, about = parse_id(name)
    return Figure(
        id=name, arm=arm, metric=metric, unit=about.unit, kind=about.kind, better=about.better,
        value=value,
    )  # fmt: skip


def _json(path: Path) -> Any:
    data = read_bounded(path, MAX_CONFIG_BYTES)
    try:
        return parse_json(data, finite=False)
    except UnicodeDecodeError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
    except ValueError as error:
        raise user_error("error.compare.no_baseline", path=str(path)) from error
