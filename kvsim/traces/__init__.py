"""Traces: files of every published format, drawn ones, and what may be done to either.

Whatever is cut, refused, moved or drawn is counted in :class:`TraceInfo`; nothing is silent.
"""

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
    "Edit",
    "ReadOptions",
    "Rejection",
    "RequestStream",
    "TraceError",
    "TraceFile",
    "TraceInfo",
    "TraceRequest",
]
