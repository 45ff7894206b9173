"""Traces: files of every published format, drawn ones, and what may be done to either.

Whatever is cut, refused, moved or drawn is counted in :class:`TraceInfo`; nothing is silent.
"""

from kvsim.traces.distributions import Arrivals, Lengths
from kvsim.traces.edit import Head, ScaleRate, Tile, WithArrivals
from kvsim.traces.generate import PRESETS, Generated, Prefixes, Recipe, from_preset
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
    "Arrivals",
    "Edit",
    "Generated",
    "Head",
    "Lengths",
    "Prefixes",
    "ReadOptions",
    "Recipe",
    "Rejection",
    "RequestStream",
    "ScaleRate",
    "Tile",
    "TraceError",
    "TraceFile",
    "TraceInfo",
    "TraceRequest",
    "WithArrivals",
    "from_preset",
]
