"""A latency model that ``calibrate`` wrote, for ``simulate`` and ``plan`` to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiment.config.reading import MAX_CONFIG_BYTES
from experiment.files.bounded_reading import parse_json, read_bounded
from experiment.files.os_errors import writing
from experiment.record.log import write_atomic
from experiment.text.errors import ExitCode, user_error
from kvsim.latency.clock import attoseconds
from kvsim.latency.roofline import (
    BatchLatency,
    Efficiencies,
    Latency,
    LinearLatency,
    Roofline,
    StepWork,
)

_KINDS: dict[str, Callable[..., Latency]] = {
    "BatchLatency": BatchLatency,
    "LinearLatency": LinearLatency,
    "Roofline": Roofline,
}
# Of each field, except 0 for costs and amounts: wide enough for every machine, and narrow enough
# that no product, quotient or sum over 10**15 tokens leaves the range of a float.
_SECONDS, _AMOUNT, _SPEED, _SHARE = (1e-30, 1e6), (1e-6, 1e21), (1.0, 1e24), (1e-12, 1.0)
_RANGES = {
    "batch": (1.0, 1e6),
    "bandwidth": _SPEED,
    "flops": _SPEED,
    **dict.fromkeys(("expert_share", "weights", "cache", "products", "attention"), _SHARE),
    **dict.fromkeys(
        ("weight_bytes", "expert_bytes", "kv_token_bytes", "token_flops", "pair_flops"), _AMOUNT
    ),
}
_MOST_BATCHES = 1024
_NEVER_ZERO = {"batch", "bandwidth", "flops", "weights", "cache", "products", "attention"}
# The least work: one prompt token and one decoded token, each attending to itself.
_LEAST_WORK = StepWork(1, 1, 2, 2)
SCHEMA_VERSION = 1


def latency_to_json(latency: Latency) -> dict[str, Any]:
    """Kind and coefficients."""
    return {"kind": type(latency).__name__, **asdict(latency)}


def write_latency(path: Path, data: dict[str, Any]) -> None:
    """Write what a calibration found.

    Raises:
        UserError: the file cannot be written; exit code ``UNWRITABLE``.
    """
    text = json.dumps(data | {"schema_version": SCHEMA_VERSION}, indent=1, allow_nan=False)
    with writing(path, ExitCode.UNWRITABLE):
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
        if "efficiencies" in values:
            values["efficiencies"] = Efficiencies(**values["efficiencies"])
        if "batches" in values:
            values["batches"] = tuple((batch, extra) for batch, extra in values["batches"])
        latency = kind(**values)
        _check(latency)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise user_error("error.sim.no_latency", path=str(path)) from error
    return latency


def _check(latency: Latency) -> None:
    """Check that every field is a number in its range, and that a step takes time.

    Raises:
        ValueError, OverflowError: a field or the duration of a step is out of range.
    """
    values = asdict(latency)
    values |= values.pop("efficiencies", {})
    batches, overlap = values.pop("batches", ()), values.pop("overlap", "max")
    pairs = [pair for batch, extra in batches for pair in (("batch", batch), ("extra", extra))]
    is_valid = (
        overlap in ("max", "sum")
        and len(batches) <= _MOST_BATCHES
        and all(_is_in_range(name, value) for name, value in (*values.items(), *pairs))
        and all(low < high for (low, _), (high, _) in pairwise(batches))
        and attoseconds(latency.seconds(_LEAST_WORK))
    )
    if not is_valid:
        raise ValueError(values)


def _is_in_range(name: str, value: object) -> bool:
    low, high = _RANGES.get(name, _SECONDS)
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (low <= value <= high or (value == 0 and name not in _NEVER_ZERO))
    )
