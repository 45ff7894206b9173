"""``sim.json``: input and results of a simulation, the only input of its reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiment.files.bounded_reading import MAX_JSON_BYTES, parse_json, read_bounded
from experiment.record.log import write_atomic
from experiment.text.errors import user_error

SIM_FILE = "sim.json"
SCHEMA_VERSION = 1


def write_simulation(directory: Path, data: dict[str, Any]) -> Path:
    """Write the record atomically; return its path."""
    path = directory / SIM_FILE
    text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomic(path, text + "\n")
    return path


def read_simulation(directory: Path) -> dict[str, Any]:
    """Read a record.

    Raises:
        UserError: missing, damaged, or of another version.
    """
    path = directory / SIM_FILE
    if not path.is_file():
        raise user_error("error.no_record", path=str(directory))
    try:
        data = parse_json(read_bounded(path, MAX_JSON_BYTES))
    except ValueError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
    if not isinstance(data, dict) or data.get("kind") != "simulation":
        raise user_error("error.no_record", path=str(directory))
    if data.get("schema_version") != SCHEMA_VERSION:
        found = str(data.get("schema_version"))  # never taken for a message
        raise user_error("error.schema", path=str(path), found=found, known=SCHEMA_VERSION)
    return data
