"""A comparison as data: numbers and message keys. Written to ``compare.json``.

Side ─ figures     one run, or a baseline
Comparison ─ left, right     the sides
           ├ differences     machine, versions, model, config
           └ rows            a figure on both sides, and a verdict
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from experiment.analysis.experiment_results import Better, Kind, Number, Unit
from experiment.text.messages import Message

Verdict = Literal[
    "better", "worse", "differs", "same", "unclear", "busy", "single", "once", "not_comparable",
    "unknown",
]  # fmt: skip
Group = Literal["machine", "versions", "model", "config"]


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True)


class Figure(_Data):
    """A figure of an arm in a run.

    ``id`` is ``arm/metric``, in an experiment ``name/key=value,.../arm/metric``. ``value`` is the
    count, or the median of the repeats in ``values``. None: unknown, with ``reason``. ``busy``: a
    time measured under background load.
    """

    id: str
    arm: str
    metric: str
    unit: Unit
    kind: Kind
    better: Better | None
    cell: dict[str, int | float | str] = {}
    value: Number | None = None
    values: list[Number] = []
    reason: Message | None = None
    busy: bool = False

    @property
    def place(self) -> str:
        """Cell in the id; empty for an ordinary run."""
        return self.id.removesuffix(f"{self.arm}/{self.metric}").removesuffix("/")

    @property
    def span(self) -> tuple[Number, Number] | None:
        """Minimum and maximum of the repeats; None without repeats."""
        return (min(self.values), max(self.values)) if len(self.values) > 1 else None


class Side(_Data):
    """A run or a baseline.

    ``model`` is that of the first cell, ``models`` those of cells with another model; None in older
    baselines, which do not record them. ``requests`` are digests by cell. ``damaged_lines`` is the
    number of invalid lines of the log, without those that ``--resume`` replaced.
    """

    name: str
    kind: Literal["run", "baseline"]
    schema_version: int
    version: str
    wall_ns: int
    utc_offset_s: int
    status: str
    command: list[str]
    busy: bool | None = None
    machine: dict[str, str | int | float | None] = {}
    versions: dict[str, str | None] = {}
    model: dict[str, str | int | None] = {}
    models: dict[str, dict[str, str | int | None]] | None = {}
    config: dict[str, Any] = {}
    requests: dict[str, str] = {}
    figures: dict[str, Figure] = {}
    damaged_lines: int = 0
    changed_files: list[str] = []

    @property
    def whole(self) -> bool:
        """Whether the run is complete and its log undamaged."""
        return self.status == "complete" and not self.damaged_lines


class Difference(_Data):
    """A property with different values on both sides."""

    group: Group
    name: str
    left: Any
    right: Any


class Row(_Data):
    """A figure on both sides.

    ``change`` is (right - left) / |left|; None if left is 0. ``improvement`` is the same with the
    sign of the better direction; None without one. ``reason``: why there is no verdict.
    """

    id: str
    figure: Figure
    left: Figure | None
    right: Figure | None
    difference: Number | None = None
    change: float | None = None
    improvement: float | None = None
    verdict: Verdict
    reason: Message | None = None


class Comparison(_Data):
    """Two sides, their differences, and all figures."""

    left: Side
    right: Side
    differences: list[Difference]
    rows: list[Row]
    notes: list[Message]

    def count(self, *verdicts: Verdict) -> int:
        """Number of rows with one of these verdicts."""
        return sum(row.verdict in verdicts for row in self.rows)
