"""Grids of simulations, by local processes or on a Ray cluster.

grid ─► cells ─┬─ finished ───────────────┐
               └─ missing ─► processes ───┼─► OUT/cells/<id>.json ─► summary
                             or Ray ──────┘
"""

from kvsim.sweep.cell import ComputedCell, compute, run_cell
from kvsim.sweep.grid import AXES, SweepCell, SweepError, expand
from kvsim.sweep.store import CellStore
from kvsim.sweep.summary import MEASURES, cells_summary

__all__ = [
    "AXES",
    "MEASURES",
    "CellStore",
    "ComputedCell",
    "SweepCell",
    "SweepError",
    "cells_summary",
    "compute",
    "expand",
    "run_cell",
]
