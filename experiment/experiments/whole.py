"""The whole gain in throughput: our paged engine over plain Transformers, and its factors.

one after another ──► StaticCache ──► padded batch ──► slabs ──► blocks
growing cache, or     cache (where    batching         engine    paging
StaticCache           growing is faster)
└─ the faster of the two is plain ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from experiment.analysis.experiment_results import CellResult, Number
from experiment.experiments.figures import ONE_BY_ONE
from experiment.experiments.found import Faster, Found, detail
from experiment.text.messages import Message, arm_message

# It runs with the cache that the padded batch has, too.
SEQUENTIAL = "contiguous.sequential"
_RATE = "tokens_per_s"
_STEPS = ("batching", "engine", "paging")


@dataclass(frozen=True, slots=True)
class Plain:
    """Transformers, one request after another, with the faster of its two caches.

    ``other`` is the slower arm and ``lead`` how far it is behind; None: it did not run.
    """

    cell: CellResult
    arm: str
    rate: Number
    other: str
    other_rate: Number | None
    lead: Faster | None

    @property
    def told(self) -> Message:
        """Which one it is, and what the other came to."""
        names = {
            "plain": arm_message(self.arm).model_dump(),
            "other": arm_message(self.other).model_dump(),
        }
        if self.other_rate is None:
            return detail("concurrency", "plain_alone", rate=self.rate, **names)
        rates = {"rate": self.rate, "other_rate": self.other_rate}
        if self.lead is not None and not self.lead.clear:
            return detail("concurrency", "plain_open", **rates, **names)
        return detail("concurrency", "plain", **rates, **names)


@dataclass(frozen=True, slots=True)
class Whole:
    """Our paged engine with the most at a time, over plain Transformers.

    ``steps`` are its factors, as far as they are known: cache (where the one that grows is plain),
    batching, engine, paging.
    """

    cell: CellResult
    plain: Plain
    faster: Faster
    steps: Mapping[str, Faster]

    @property
    def complete(self) -> bool:
        """Whether all of its factors are known."""
        return all(name in self.steps for name in _STEPS)

    @property
    def open(self) -> Faster | None:
        """The first of all factors that decides nothing: then the whole does not, either.

        Among them is which of the two is plain.
        """
        factors = (self.faster, *self.steps.values(), self.plain.lead)
        return next((each for each in factors if each is not None and not each.enough), None)


def over_base(
    found: Found, cell: CellResult, figure: str, arm: str, base: str | None
) -> Faster | None:
    """A figure of an arm over that of another; None: of one request after another.

    That is the same in every cell and runs in the first.
    """
    if base is not None:
        return found.ratio(cell, figure, arm, base)
    first = next(found.with_arms(SEQUENTIAL), None)
    if first is None:
        return None
    return found.compared((cell, arm, figure), (first, SEQUENTIAL, figure))


def plain_arm(found: Found) -> Plain | None:
    """The faster one by its medians."""
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
    """The gain as a whole; of its steps the last one alone is paging's."""
    cell, plain = next(reversed(list(found.with_arms("paged"))), None), plain_arm(found)
    if cell is None or plain is None:
        return None
    base = (plain.cell, plain.arm, _RATE)
    faster = found.compared((cell, "paged", _RATE), base)
    if faster is None:
        return None
    first = next(found.with_arms(SEQUENTIAL), None)
    steps = {}
    if plain.arm != SEQUENTIAL and first is not None:
        steps["cache"] = found.compared((first, SEQUENTIAL, _RATE), base)
    pairs = (("contiguous.batch", None), ("slabs", "contiguous.batch"), ("paged", "slabs"))
    for name, (arm, before) in zip(_STEPS, pairs, strict=True):
        steps[name] = over_base(found, cell, _RATE, arm, before)
    return Whole(cell, plain, faster, {name: step for name, step in steps.items() if step})
