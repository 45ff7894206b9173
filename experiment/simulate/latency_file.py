"""A latency model that ``calibrate`` wrote, for ``simulate`` and ``plan`` to read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import parse_json, read_bounded
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.text.errors import user_error
from kvsim.latency.roofline import Latency, LinearLatency, Roofline

_KINDS: dict[str, Callable[..., LinearLatency | Roofline]] = {
    "LinearLatency": LinearLatency,
    "Roofline": Roofline,
}
# Of a cost: what is multiplied by tokens stays finite.
_MOST_COST = 1e30
_DIVISORS = {"bandwidth", "flops", "memory_efficiency", "compute_efficiency"}
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
    with writing(path):
        write_atomic(path, text + "\n")


def read_latency(path: Path) -> Latency:
    """Read a latency model.

    Raises:
        UserError: there is no such file, or it is none.
    """
    text = read_bounded(path, MAX_CONFIG_BYTES)
    try:
        data = parse_json(text)
        values = dict(data["latency"])
        kind = _KINDS[values.pop("kind")]
        latency = kind(**{k: math.inf if v is None else v for k, v in values.items()})
        _check(latency)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise user_error("error.sim.no_latency", path=str(path)) from error
    return latency


def _check(latency: LinearLatency | Roofline) -> None:
    """Costs are numbers that are not negative, and a step takes time.

    Raises:
        ValueError, OverflowError: they are not.
    """
    values = asdict(latency)
    if values.pop("overlap", "max") not in ("max", "sum"):
        raise ValueError(values)
    numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
    good = all(
        float(value) > 0 if name in _DIVISORS else 0 <= float(value) < _MOST_COST
        for name, value in numbers.items()
    )
    if len(numbers) < len(values) or not good:
        raise ValueError(values)
    if isinstance(latency, LinearLatency) and not any(numbers.values()):
        raise ValueError(values)
