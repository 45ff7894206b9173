"""A latency model that ``calibrate`` wrote, for ``simulate`` and ``plan`` to read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment.messages import user_error
from experiment.os_errors import os_reason
from experiment.record import write_atomic
from kvsim.roofline import Latency, LinearLatency, Roofline

_KINDS: dict[str, Callable[..., LinearLatency | Roofline]] = {
    "LinearLatency": LinearLatency,
    "Roofline": Roofline,
}
SCHEMA_VERSION = 1


def latency_to_json(latency: Latency) -> dict[str, Any]:
    """Kind and coefficients; an efficiency that records do not show (infinite) is null."""
    assert isinstance(latency, LinearLatency | Roofline)
    values = {
        name: None if isinstance(value, float) and math.isinf(value) else value
        for name, value in asdict(latency).items()
    }
    return {"kind": type(latency).__name__, **values}


def write_latency(path: Path, data: dict[str, Any]) -> None:
    """Write what a calibration found.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps(data | {"schema_version": SCHEMA_VERSION}, indent=1, allow_nan=False)
    try:
        write_atomic(path, text + "\n")
    except OSError as error:
        raise user_error("error.out_unwritable", path=str(path), why=os_reason(error)) from error


def read_latency(path: Path) -> Latency:
    """Read a latency model.

    Raises:
        UserError: there is no such file, or it is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        values = dict(data["latency"])
        kind = _KINDS[values.pop("kind")]
        latency = kind(**{k: math.inf if v is None else v for k, v in values.items()})
        _check(latency)
    except FileNotFoundError as error:
        raise user_error("error.file_missing", path=str(path)) from error
    except OSError as error:
        raise user_error("error.file_unreadable", path=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise user_error("error.sim.no_latency", path=str(path)) from error
    return latency


def _check(latency: LinearLatency | Roofline) -> None:
    """Costs are numbers that are not negative, and a step takes time.

    Raises:
        ValueError: they are not.
    """
    numbers = [v for v in asdict(latency).values() if not isinstance(v, str)]
    if any(isinstance(v, bool) or not isinstance(v, int | float) or not v >= 0 for v in numbers):
        raise ValueError(numbers)
    if isinstance(latency, LinearLatency) and not any(numbers):
        raise ValueError(numbers)
