"""Figures of each replayed step."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, computed_field


class SlotFigures(BaseModel):
    """Slots in each state; see :class:`kvsim.accounting.ledger.SlotState`. Means are fractional."""

    model_config = ConfigDict(frozen=True)

    reserved: float
    allocated: float
    live: float
    wasted: float
    cached: float
    padding: float
    finished: float
    unwritten: float
    rounding: float
    hole: float
    engine: float
    watermark: float
    free: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def utilisation(self) -> float | None:
        """live / allocated."""
        return self.live / self.allocated if self.allocated else None


class StepRow(SlotFigures):
    """One step of an arm.

    ``witness`` is the number of written slots in the tensors, ``written`` in the tables.
    ``never_written`` is the part of ``unwritten`` that will never be written. ``shared`` counts
    blocks with several owners, ``copied`` and ``swapped`` blocks moved by the step. ``held_blocks``
    counts distinct blocks held by requests, ``table_entries`` all entries of their tables.
    ``found_late`` counts tokens that preempted requests found in the prefix cache on resumption,
    beyond what they had computed.
    """

    step: int
    t_ns: int
    started_ns: int
    tokens: int
    running: int
    waiting: int
    preempted: int
    witness: int | None
    written: int
    never_written: int
    shared: int
    copied: int
    swapped: int
    held_blocks: int
    table_entries: int
    found_late: int
