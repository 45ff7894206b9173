"""Traces: files in all published formats, synthetic traces, and edits of both.

:class:`TraceInfo` counts everything cut, rejected, shifted or sampled.
"""

from kvsim.traces.distributions import ArrivalProcess, LengthDistribution
from kvsim.traces.edit import Head, ScaleRate, Tile, WithArrivals, at_rate
from kvsim.traces.generate import PRESETS, Recipe, SyntheticTrace, from_preset
from kvsim.traces.load import ReadOptions, TraceFile
from kvsim.traces.types import (
    Edit,
    Rejection,
    RequestStream,
    TraceError,
    TraceInfo,
    TraceRequest,
)

__all__ = [
    "PRESETS",
    "ArrivalProcess",
    "Edit",
    "Head",
    "LengthDistribution",
    "ReadOptions",
    "Recipe",
    "Rejection",
    "RequestStream",
    "ScaleRate",
    "SyntheticTrace",
    "Tile",
    "TraceError",
    "TraceFile",
    "TraceInfo",
    "TraceRequest",
    "WithArrivals",
    "at_rate",
    "from_preset",
]
