"""A grid of simulations: every combination of the listed values is a cell, computed once.

    policy      paged  max            cells    paged 8 · paged 16 · max
    block size  8  16                          what a policy does not know of is no axis for it

    cell ─► canonical JSON ─► sha256 ─► id ─► OUT/cells/<id>.json

A cell's id covers all that its result depends on: every setting, the content of its trace, and this
package's own code. So a finished cell is never computed again, a changed one always, and whoever
computes it writes the same bytes. How long it took stands in a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import kvsim
from kvsim.files import file_sha256
from kvsim.sim.config import CONTIGUOUS, SIM_POLICIES
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model
from kvsim.traces.generate import PRESETS

FORMAT = 1
# Of SimConfig; the others follow from model and GPU, or are written down with the trace.
SETTINGS = (
    "block_size", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
    "watermark_blocks", "preemption", "host_blocks", "samples", "beams", "branching", "growth",
)  # fmt: skip
# What policies other than the paged ones do not know of.
_PAGED_ONLY = {"block_size", "watermark_blocks", "preemption", "host_blocks", "beams", "branching"}
AXES = (
    "policy", "model", "gpu", "gpus", "budget_bytes", "max_length", *SETTINGS,
    "trace", "requests", "rate", "cv", "seed",
)  # fmt: skip
# Far above what is meant; beyond them arrays and floats overflow.
_MOST, _MOST_NUMBER = 1 << 62, 1e12
# A cell takes a file, and a second or more.
MOST_CELLS = 1_000_000
_NEEDED = ("policy", "model", "gpu", "trace")


class SweepError(ValueError):
    """A grid that makes no cells.

    Attributes:
        code: ``unknown_axis``, ``no_values``, ``missing_axes``, ``bad_value``, ``no_file``,
            ``too_many``, ``no_rate_to_scale``, ``workers_died``, ``no_ray``, ``ray_unreachable``;
            a key for a translation.
        params: its names and values.
    """

    def __init__(self, code: str, **params: object) -> None:
        super().__init__(f"{code}: {params}")
        self.code, self.params = code, params


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation: its settings by name of the axis; those not given are not in it."""

    settings: Mapping[str, Any]
    trace_sha256: str | None
    code: str

    @property
    def id(self) -> str:
        """Twenty hexadecimal digits of all that the result depends on."""
        return hashlib.sha256(canonical(self.key)).hexdigest()[:20]

    @property
    def key(self) -> dict[str, Any]:
        """What the id covers. A trace file counts by its content and name, not by its place."""
        settings = dict(self.settings)
        if self.trace_sha256 is not None:
            settings["trace"] = Path(settings["trace"]).name
        return {
            "format": FORMAT,
            "code": self.code,
            "settings": settings,
            "trace_sha256": self.trace_sha256,
        }


def canonical(data: Any) -> bytes:
    """JSON of which there is one: sorted keys, no blanks.

    Raises:
        ValueError: a number that is none.
    """
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode() + b"\n"


def expand(grid: Mapping[str, Any]) -> list[Cell]:
    """Cells of a grid, in the order of its axes; a value that is no list is the only one.

    Raises:
        SweepError: an unknown or missing axis, or one without values or with a wrong one.
        kvsim.sizing.models.UnknownModelError, kvsim.sizing.gpus.UnknownGPUError: no such name.
    """
    axes = {name: _values(name, values) for name, values in grid.items()}
    drawn = any(name in PRESETS for name in axes.get("trace", ()))
    missing = [name for name in (*_NEEDED, *["requests"] * drawn) if name not in axes]
    if missing:
        raise SweepError("missing_axes", axes=", ".join(missing))
    count = math.prod(len(values) for values in axes.values())
    if count > MOST_CELLS:
        raise SweepError("too_many", count=count, most=MOST_CELLS)
    _check(axes)
    hashes = {name: trace_sha256(Path(name)) for name in axes["trace"] if name not in PRESETS}
    code = code_digest()
    cells: dict[str, Cell] = {}
    for values in product(*axes.values()):
        settings = _relevant(dict(zip(axes, values, strict=True)))
        cell = Cell(settings, hashes.get(settings["trace"]), code)
        cells.setdefault(cell.id, cell)
    return list(cells.values())


def _values(name: str, values: Any) -> Sequence[Any]:
    if name not in AXES:
        raise SweepError("unknown_axis", axis=name)
    several = list(values) if isinstance(values, list | tuple) else [values]
    if not several:
        raise SweepError("no_values", axis=name)
    for value in several:
        if not _fits(name, value):
            raise SweepError("bad_value", axis=name, value=value)
    return several


_TEXTS = {"policy", "model", "gpu", "trace", "preemption"}
_NUMBERS = {"rate", "cv", "branching"}


def _fits(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return isinstance(value, str) and bool(value)
    if isinstance(value, bool):
        return False
    if name == "rate" and isinstance(value, str):
        return rate_factor(value) is not None
    if name in _NUMBERS:
        fits = isinstance(value, int | float) and 0 <= value <= _MOST_NUMBER
        return fits and (name != "rate" or value > 0)
    least = 0 if name in ("seed", "watermark_blocks", "host_blocks") else 1
    return isinstance(value, int) and least <= value <= _MOST


def rate_factor(rate: float | str | None) -> float | None:
    """2.0 of ``2x``, which is twice the rate that the trace has; None of a rate in requests."""
    if not isinstance(rate, str) or rate[-1:].lower() != "x":
        return None
    try:
        factor = float(rate[:-1])
    except ValueError:
        return None
    return factor if 0 < factor < math.inf else None


def _check(axes: Mapping[str, Sequence[Any]]) -> None:
    for policy in axes["policy"]:
        if policy not in SIM_POLICIES:
            raise SweepError("bad_value", axis="policy", value=policy, choices=SIM_POLICIES)
    for model in axes["model"]:
        find_model(model)
    for gpu in axes["gpu"]:
        find_gpu(gpu)
    for kind in axes.get("preemption", ()):
        kinds = ("recompute", "swap")
        if kind not in kinds:
            raise SweepError("bad_value", axis="preemption", value=kind, choices=kinds)
    drawn = [name for name in axes["trace"] if name in PRESETS]
    scaled = [rate for rate in axes.get("rate", ()) if rate_factor(rate) is not None]
    if drawn and scaled:
        raise SweepError("no_rate_to_scale", trace=drawn[0], value=scaled[0])


def _relevant(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out what this cell does not depend on, and use one number for one value."""
    if settings["policy"] in CONTIGUOUS:
        settings = {k: v for k, v in settings.items() if k not in _PAGED_ONLY}
    if settings["trace"] not in PRESETS and "rate" not in settings:
        settings = {k: v for k, v in settings.items() if k not in ("seed", "cv")}
    for name in _NUMBERS & settings.keys():
        factor = rate_factor(settings[name])
        settings[name] = float(settings[name]) if factor is None else f"{factor!r}x"
    return settings


def trace_sha256(path: Path) -> str:
    """Sha256 of a trace file.

    Raises:
        SweepError: ``no_file``.
    """
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that is none, or too long for one
        there = False
    if not there:
        raise SweepError("no_file", path=str(path))
    return file_sha256(path)


@cache
def code_digest() -> str:
    """Hash of this package's source: a result is that of one program."""
    root = Path(kvsim.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda each: each.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()
