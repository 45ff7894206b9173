"""Total gain in throughput: our paged engine over plain Transformers, and its factors.

sequential        ──► StaticCache ──► padded batch ──► slabs ──► blocks
growing cache, or     cache (if       batching         engine    paging
StaticCache           growing is faster)
└─ the faster of the two is plain ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiment.analysis.experiment_results import CellResult, Compared, Number
from experiment.analysis.finding_text import sentence
from experiment.experiments.figures import ONE_BY_ONE
from experiment.experiments.findings import seen_as, side
from experiment.experiments.found import Faster, Found, Place
from experiment.experiments.labels import arm_label, figure_label
from experiment.text.messages import Message, message

# Uses the same cache as the padded batch.
SEQUENTIAL = "contiguous.sequential"
_RATE = "tokens_per_s"
_STEPS = ("batching", "engine", "paging")


@dataclass(frozen=True, slots=True)
class Plain:
    """Sequential Transformers with the faster of its two caches.

    ``other`` is the slower arm, ``lead`` the factor over it; None if it did not run.
    """

    cell: CellResult
    arm: str
    rate: Number
    other: str
    other_rate: Number | None
    lead: Faster | None

    @property
    def note(self) -> Message:
        """The two arms with their throughput."""
        sides = [
            side(arm_label(self.arm), _RATE, self.rate),
            side(arm_label(self.other), _RATE, self.other_rate),
        ]
        lead = {} if self.lead is None else seen_as(self.lead)
        row = sentence(Compared(figure=figure_label(_RATE), sides=sides, **lead))
        assert row is not None
        return message("experiments.concurrency.plain", row=row.model_dump())


@dataclass(frozen=True, slots=True)
class Whole:
    """Our paged engine at the highest concurrency, over plain Transformers.

    ``steps`` are its known factors: cache (if the growing one is plain), batching, engine, paging.
    ``places`` are the two sides of each, and of the whole.
    """

    cell: CellResult
    plain: Plain
    faster: Faster
    steps: Mapping[str, Faster]
    places: Mapping[str, tuple[Place, Place]]

    @property
    def complete(self) -> bool:
        """Whether all factors are known."""
        return all(name in self.steps for name in _STEPS)

    @property
    def open(self) -> Faster | None:
        """The first inconclusive factor, the one between the two plain arms included.

        With one, the total is inconclusive too. None without any.
        """
        factors = (self.faster, *self.steps.values(), self.plain.lead)
        return next((each for each in factors if each is not None and not each.enough), None)


def over_base(found: Found, cell: CellResult, figure: str, arm: str, base: str) -> Faster | None:
    """A figure of an arm over that of another.

    :data:`SEQUENTIAL` is the same in every cell and runs in the first one only.
    """
    if base != SEQUENTIAL:
        return found.ratio(cell, figure, arm, base)
    first = next(found.with_arms(SEQUENTIAL), None)
    if first is None:
        return None
    return found.compared((cell, arm, figure), (first, SEQUENTIAL, figure))


def plain_arm(found: Found) -> Plain | None:
    """The sequential arm with the higher median; None if none ran."""
    ran = [
        (rate, arm, cell)
        for arm in ONE_BY_ONE
        for cell in [next(found.with_arms(arm), None)]
        if cell is not None and (rate := found.value(cell, arm, _RATE)) is not None
    ]
    if not ran:
        return None
    rate, arm, cell = max(ran, key=lambda one: one[0])
    slower = next((one for one in ran if one[1] != arm), None)
    if slower is None:
        other = next(name for name in ONE_BY_ONE if name != arm)
        return Plain(cell, arm, rate, other, None, None)
    lead = found.compared((cell, arm, _RATE), (slower[2], slower[1], _RATE))
    return Plain(cell, arm, rate, slower[1], slower[0], lead)


def whole_gain(found: Found) -> Whole | None:
    """The total gain, of which only the last factor is paging's; None if an arm did not run."""
    cell, plain = found.last("paged"), plain_arm(found)
    if cell is None or plain is None:
        return None
    paged, base = (cell, "paged", _RATE), (plain.cell, plain.arm, _RATE)
    faster = found.compared(paged, base)
    if faster is None:
        return None
    first = next(found.with_arms(SEQUENTIAL), None)
    batch, slabs = ((cell, arm, _RATE) for arm in ("contiguous.batch", "slabs"))
    places = {"whole": (paged, base), "engine": (slabs, batch), "paging": (paged, slabs)}
    if first is not None:
        static = (first, SEQUENTIAL, _RATE)
        places["batching"] = (batch, static)
        if plain.arm != SEQUENTIAL:
            places["cache"] = (static, base)
    names = [name for name in ("cache", *_STEPS) if name in places]
    steps = {name: found.compared(*places[name]) for name in names}
    return Whole(cell, plain, faster, {n: step for n, step in steps.items() if step}, places)
