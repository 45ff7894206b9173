"""What an experiment found, as data: numbers and message keys. Part of ``run.json``.

ExperimentResult ─ cells ─ arms ─ figures      measured, foretold, spread
                 └ findings                    verdicts
                 └ problems                    repeats or predictions that do not agree
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from experiment.config.arms import in_order
from experiment.text.messages import Message

Number = int | float
Unit = Literal["count", "mean", "share", "bytes", "seconds", "rate"]
Kind = Literal["count", "time", "measured"]
Better = Literal["more", "less"]
Verdict = Literal["shown", "not_shown", "untested"]
# What a run was given to begin with: that kvsim says the same shows nothing.
GIVEN = frozenset(("blocks", "usable_blocks", "block_slots", "usable_slots"))
BUSY_NOTE = "experiments.note.busy"
_NOISY = (BUSY_NOTE, "experiments.note.noisy")


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True)


class FigureInfo(_Result):
    """A column: its unit, whether it is counted, timed or measured once, and what is better."""

    figure: str
    unit: Unit
    kind: Kind
    better: Better | None


class FigureValue(_Result):
    """A figure of an arm in a cell.

    ``value`` is the count, which all repeats share, or the median of a time; None where there is
    none, and ``reason`` says why. ``values`` are those of the repeats, the warm-up left out.
    ``foretold`` is what kvsim says of the same requests; ``unforetold`` why it says nothing.
    """

    value: Number | None
    values: list[Number] = []
    reason: Message | None = None
    foretold: Number | None = None
    unforetold: Message | None = None

    @property
    def low(self) -> Number | None:
        """The smallest of the repeats."""
        return min(self.values, default=None)

    @property
    def high(self) -> Number | None:
        """The largest of the repeats."""
        return max(self.values, default=None)

    @property
    def spread(self) -> float | None:
        """(largest - smallest) / median; None where nothing was repeated."""
        if self.value is None or not self.value or len(self.values) < 2:
            return None
        return (max(self.values) - min(self.values)) / abs(self.value)

    @property
    def exact(self) -> bool | None:
        """Whether the count is what was foretold; None where one of them is missing."""
        if self.value is None or self.foretold is None:
            return None
        # Means are the same ratio of whole numbers, divided in another order.
        return abs(self.value - self.foretold) <= 1e-9 * max(1.0, abs(self.foretold))


class CellArm(_Result):
    """An arm in a cell. ``outputs`` is a digest of each request's tokens, in their order.

    ``plans`` are, of our engine, how many steps the simulator plans just so when it is told what
    no scheduler can know (stops, and where beams go on), and all steps. ``others_cores`` are cores
    that other programs kept busy as the arm began or on average over a measured repeat, the larger
    of the two, which may slow all its repeats alike; None: they kept none worth naming, or nobody
    knows. ``turns`` is the number of the group with which it took turns, repeat by repeat; None: it
    ran all of its repeats one behind the other.
    """

    arm: str
    status: Literal["finished", "failed", "skipped"]
    reason: Message | None
    repeats: int
    figures: dict[str, FigureValue]
    outputs: list[str] = []
    plans: tuple[int, int] | None = None
    problems: list[Message] = []
    others_cores: float | None = None
    turns: int | None = None


class CellResult(_Result):
    """A cell: what it is called by, and its arms."""

    index: int
    values: dict[str, int | float | str]
    requests: int
    max_length: int
    block_size: int
    budget_bytes: int
    arms: list[CellArm]

    def arm(self, name: str) -> CellArm | None:
        """The arm of that name, if it ended well."""
        return next((a for a in self.arms if a.arm == name and a.status == "finished"), None)


class Without(_Result):
    """An arm that ran in no cell because nobody asked it to, and why."""

    arm: str
    reason: Message


class Side(_Result):
    """One of the values that a finding compares.

    ``unit``: how it is written, a format of :mod:`experiment.text`. ``low`` and ``high`` are the
    smallest and the largest repeat.
    """

    label: Message | str
    value: Number | None
    unit: str
    low: Number | None = None
    high: Number | None = None


class Compared(_Result):
    """Values side by side, and what follows from them.

    ``figure`` is what all sides are values of; None: each has a label that says so. ``at`` is the
    cell. ``estimate`` is of this ``kind``:

    - ratio: the first side over the second
    - of: a count of ``n``
    - from: the number of the varied value from which on something is seen
    - value: one of the sides, written there already

    ``low`` and ``high`` bound the estimate over ``n`` repeats, or ``rounds`` of interleaved runs.
    ``reason`` says why it decides nothing, or what speaks against the claim.
    """

    figure: Message | None = None
    at: Message | None = None
    sides: list[Side] = []
    kind: Literal["ratio", "of", "from", "value"] | None = None
    estimate: Number | None = None
    low: Number | None = None
    high: Number | None = None
    n: int | None = None
    rounds: bool = False
    reason: Message | None = None


class Finding(Compared):
    """What the run shows: a claim with its verdict, or a plain fact without one.

    ``beside`` are further comparisons, ``notes`` what else there is to know. ``title`` is what it
    is called; None: the text that has its ``id`` among those of the experiment. Its sentences are
    made by :mod:`experiment.analysis.finding_text`.
    """

    id: str
    verdict: Verdict | None
    title: Message | None = None
    beside: list[Compared] = []
    notes: list[Message] = []


class ExperimentResult(_Result):
    """All that an experiment found. ``cells_planned`` may be more than ran."""

    name: str
    size: Literal["full", "quick"]
    repeats: int
    cells_planned: int
    focus: int
    figures: list[FigureInfo]
    charts: list[str]
    cells: list[CellResult]
    findings: list[Finding]
    problems: list[Message]
    notes: list[Message]
    without: list[Without] = []

    @property
    def arms(self) -> list[str]:
        """Arms of any cell, by the ladder of arms."""
        return in_order(dict.fromkeys(arm.arm for cell in self.cells for arm in cell.arms))

    @property
    def noisy(self) -> bool:
        """Whether times scatter between repeats, or others were busy, as on no quiet machine."""
        return any(note.key in _NOISY for note in self.notes)

    @property
    def exact_counts(self) -> tuple[int, int]:
        """Number of counts that equal kvsim's predictions, and number of predicted counts.

        Without counts that restate the config.
        """
        found = [
            value.exact
            for cell in self.cells
            for arm in cell.arms
            for name, value in arm.figures.items()
            if value.exact is not None and name not in GIVEN
        ]
        return sum(found), len(found)
