"""Grid of simulations: each combination of the listed values is a cell, computed once.

    policy      paged  max            cells    paged 8 · paged 16 · max
    block size  8  16                          a policy ignores axes that do not apply to it

    cell ─► canonical JSON ─► sha256 ─► id ─► OUT/cells/<id>.json

The id covers everything that the result depends on: settings, content of the trace, and this
package's source. A finished cell is never computed again, a changed one always is, and its bytes
do not depend on the machine. The time it took is in a separate file.
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
from typing import Any, get_args

import kvsim
from kvsim.base.coded_error import CodedError
from kvsim.core.limits import PreemptionKind
from kvsim.sim.config import CONTIGUOUS, SIM_POLICIES
from kvsim.sizing.gpus import find_gpu
from kvsim.sizing.models import find_model
from kvsim.traces.generate import PRESETS
from kvsim.traces.opening import Hashed

FORMAT = 1
# Fields of SimConfig; the others follow from model and GPU, or are recorded with the trace.
SETTINGS = (
    "block_size", "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold",
    "watermark_blocks", "preemption", "host_blocks", "samples", "beams", "branching",
)  # fmt: skip
# Axes that apply to paged policies only.
_PAGED_ONLY = {"block_size", "watermark_blocks", "preemption", "host_blocks", "beams", "branching"}
AXES = (
    "policy", "model", "gpu", "gpus", "budget_bytes", "max_length", *SETTINGS,
    "trace", "requests", "rate", "cv", "seed",
)  # fmt: skip
# Limits far above sensible values; larger ones overflow arrays and floats.
_MAX_INT, _MAX_FLOAT = 1 << 62, 1e12
# Drawn all at once, 24 bytes for each.
MAX_REQUESTS = 20_000_000
# Each cell takes a file and at least a second. Listing these takes a second and 100 MB.
MAX_CELLS = 100_000
_NEEDED = ("policy", "model", "gpu", "trace")


class SweepError(CodedError):
    """The grid has no valid cells.

    Attributes:
        code: ``unknown_axis``, ``no_values``, ``missing_axes``, ``bad_value``, ``no_file``,
            ``too_many``, ``no_rate_to_scale``, ``workers_died``, ``no_ray``,
            ``ray_unreachable``; a translation key.
        params: values for the message.
    """


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One simulation: its settings by axis; unset axes are absent."""

    settings: Mapping[str, Any]
    trace_sha256: str | None
    code: str

    @property
    def id(self) -> str:
        """Twenty hexadecimal digits of the hash over ``key``."""
        return hashlib.sha256(canonical(self.key)).hexdigest()[:20]

    @property
    def key(self) -> dict[str, Any]:
        """Everything the id covers; a trace file by content and name, not by directory."""
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
    """Encode as canonical JSON: sorted keys, no blanks.

    Raises:
        ValueError: NaN or an infinity.
    """
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode() + b"\n"


def expand(grid: Mapping[str, Any]) -> list[SweepCell]:
    """Return the cells of a grid, in the order of its axes; a scalar is a list of one value.

    Raises:
        SweepError: an unknown or missing axis, or one without values or with a wrong one.
        kvsim.sizing.models.UnknownModelError, kvsim.sizing.gpus.UnknownGPUError: no such name.
    """
    axes = {name: _values(name, values) for name, values in grid.items()}
    synthetic = any(name in PRESETS for name in axes.get("trace", ()))
    missing = [name for name in (*_NEEDED, *["requests"] * synthetic) if name not in axes]
    if missing:
        raise SweepError("missing_axes", axes=", ".join(missing))
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_CELLS:
        raise SweepError("too_many", count=count, most=MAX_CELLS)
    _check(axes)
    hashes = trace_hashes([name for name in axes["trace"] if name not in PRESETS])
    code = code_digest()
    cells: dict[str, SweepCell] = {}
    for values in product(*axes.values()):
        settings = _relevant(dict(zip(axes, values, strict=True)))
        cell = SweepCell(settings, hashes.get(settings["trace"]), code)
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
    return list(dict.fromkeys(several))


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
        fits = isinstance(value, int | float) and 0 <= value <= _MAX_FLOAT
        return fits and (name != "rate" or value > 0)
    least = 0 if name in ("seed", "watermark_blocks", "host_blocks") else 1
    most = MAX_REQUESTS if name == "requests" else _MAX_INT
    return isinstance(value, int) and least <= value <= most


def rate_factor(rate: float | str | None) -> float | None:
    """Parse ``2x`` (twice the trace's own rate) as 2.0; None for a rate in requests/s."""
    if not isinstance(rate, str) or rate[-1:].lower() != "x":
        return None
    try:
        factor = float(rate[:-1])
    except ValueError:
        return None
    return factor if 0 < factor < math.inf else None


def _check(axes: Mapping[str, Sequence[Any]]) -> None:
    choices = {"policy": SIM_POLICIES, "preemption": get_args(PreemptionKind)}
    for axis, known in choices.items():
        for value in axes.get(axis, ()):
            if value not in known:
                raise SweepError("bad_value", axis=axis, value=value, choices=known)
    for model in axes["model"]:
        find_model(model)
    for gpu in axes["gpu"]:
        find_gpu(gpu)
    synthetic = [name for name in axes["trace"] if name in PRESETS]
    scaled = [rate for rate in axes.get("rate", ()) if rate_factor(rate) is not None]
    if synthetic and scaled:
        raise SweepError("no_rate_to_scale", trace=synthetic[0], value=scaled[0])


def _relevant(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove settings that the cell does not depend on, and normalise numbers."""
    if settings["policy"] in CONTIGUOUS:
        settings = {k: v for k, v in settings.items() if k not in _PAGED_ONLY}
    if settings["trace"] not in PRESETS and "rate" not in settings:
        settings = {k: v for k, v in settings.items() if k not in ("seed", "cv")}
    for name in _NUMBERS & settings.keys():
        factor = rate_factor(settings[name])
        settings[name] = float(settings[name]) if factor is None else f"{factor!r}x"
    return settings


def trace_hashes(names: Sequence[str]) -> dict[str, str]:
    """Return the sha256 of each trace file.

    Raises:
        SweepError: ``no_file``.
    """
    found = {}
    for name in names:
        try:
            if not Path(name).is_file():
                raise SweepError("no_file", path=name)
            with Path(name).open("rb") as file:
                found[name] = Hashed(file).drain()
        except (OSError, ValueError) as error:  # an invalid or too long name, or unreadable
            raise SweepError("no_file", path=name) from error
    return found


@cache
def code_digest() -> str:
    """Return a hash of this package's source."""
    root = Path(kvsim.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda each: each.relative_to(root).as_posix()):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()
