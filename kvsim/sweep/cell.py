"""Computes one cell: the bytes of its file, identical on every machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.sim.config import SimConfig, SimulationError, catalogue_config
from kvsim.sim.simulator import simulate
from kvsim.sizing.geometry import UnsupportedGeometryError
from kvsim.sizing.models import find_model
from kvsim.sweep.grid import SETTINGS, SweepCell, canonical, code_digest, rate_factor, trace_hashes
from kvsim.traces.distributions import ArrivalProcess
from kvsim.traces.edit import Head, ScaleRate, at_rate
from kvsim.traces.generate import SyntheticTrace, from_preset
from kvsim.traces.load import TraceFile
from kvsim.traces.types import RequestStream, TraceError


@dataclass(frozen=True, slots=True)
class ComputedCell:
    """A computed cell, its cost, and where it was computed: ``process``, or a Ray node id."""

    id: str
    content: bytes
    seconds: float
    by: str = "process"


def compute(cell: SweepCell, trace: Path | None = None) -> ComputedCell:
    """Run :func:`run_cell` and measure its time."""
    began = time.perf_counter()
    content = run_cell(cell, trace)
    return ComputedCell(cell.id, content, time.perf_counter() - began)


def run_cell(cell: SweepCell, trace: Path | None = None) -> bytes:
    """Simulate a cell and return the bytes of its file.

    If the simulation is impossible (pool too small, bad trace row), the error is the result.

    Args:
        trace: location of the trace file, if not that of the cell.

    Raises:
        RuntimeError: this code, or the trace, is not the one of the cell.
    """
    if cell.trace_sha256 is not None:
        path = trace or Path(cell.settings["trace"])
        if trace_hashes([str(path)])[str(path)] != cell.trace_sha256:
            raise RuntimeError(f"{path} is another trace than when the sweep began")
    if cell.code != code_digest():
        raise RuntimeError("another version of kvsim was to compute this cell")
    data: dict[str, Any] = {"id": cell.id, "cell": cell.key}
    try:
        stream = _stream(cell, trace)
        data["result"] = simulate(stream, _config(cell, stream)).to_json()
    except (SimulationError, TraceError) as error:
        params = {k: v for k, v in error.params.items() if k != "file"}
        data["error"] = {"code": error.code, "params": _plain(params)}
    except UnsupportedGeometryError as error:
        data["error"] = {"code": "unsupported_geometry", "params": {"reason": error.reason}}
    return canonical(data)


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, int | float | str) else str(v) for k, v in params.items()}


def _config(cell: SweepCell, stream: RequestStream) -> SimConfig:
    settings = cell.settings
    length = settings.get("max_length")
    if length is None:
        longest = max((each.prompt_tokens + each.output_tokens for each in stream), default=1)
        length = find_model(settings["model"]).max_length_of(longest)
    return catalogue_config(
        settings["policy"],
        settings["model"],
        settings["gpu"],
        settings.get("gpus", 1),
        settings.get("budget_bytes"),
        length,
        seed=settings.get("seed", 0),
        # The summary needs no fine series, and a grid has many cells.
        series_points=64,
        **{name: settings[name] for name in SETTINGS if name in settings},
    )


def _stream(cell: SweepCell, path: Path | None) -> RequestStream:
    settings = cell.settings
    rate, seed = settings.get("rate"), settings.get("seed", 0)
    factor, cv = rate_factor(rate), settings.get("cv", 1.0)
    if cell.trace_sha256 is None:
        # Limit the lengths, so that cells with one maximum length serve the same requests.
        length = settings.get("max_length") or find_model(settings["model"]).max_positions
        return SyntheticTrace(
            from_preset(
                settings["trace"], settings["requests"], ArrivalProcess(rate, cv), seed=seed,
                max_length=length,
            )
        )  # fmt: skip
    stream: RequestStream = TraceFile(path or Path(settings["trace"]))
    if "requests" in settings:
        stream = Head(stream, settings["requests"])
    if factor is not None and not stream.info.has_clock:
        raise SimulationError("bad_option", option="rate", value=rate)
    if factor is not None:
        return ScaleRate(stream, factor)
    about = {"rate": rate, "cv": cv, "seed": seed}
    return stream if rate is None else at_rate(stream, rate, cv, seed, about)
