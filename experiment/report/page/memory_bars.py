"""Bars of reserved, allocated and live memory at the peak, and the first screen made of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiment.analysis.results import ArmResult, PeakBytes, Results
from experiment.analysis.throughput_claim import (
    contiguous_and_paged,
    factor_at_equal_concurrency,
    second_parts,
)
from experiment.report.facts.series import Series
from experiment.report.facts.texts import Keyed
from experiment.text.messages import Message, message
from kvsim.accounting.slots import ALLOCATED_STATES, OTHER_STATES

# A smaller factor is no headline.
_LEAST_FACTOR = 1.05
_COARSE = ("live", "wasted")
_STATES = tuple(state.value for state in (*ALLOCATED_STATES, *OTHER_STATES))


@dataclass(frozen=True, slots=True)
class MemoryBar:
    """Memory of an arm at its peak, in percent of the largest pool that is drawn.

    Attributes:
        reserved: width of the pool.
        pieces: (state, start, width) of each part of it.
        spread: live share of the allocated memory over the steps.
    """

    arm: ArmResult
    bytes: PeakBytes
    reserved: float
    pieces: list[tuple[str, float, float]]
    spread: Message | None


def memory_bars(
    arms: Sequence[ArmResult], series: Sequence[Series] = (), *, coarse: bool = False
) -> list[MemoryBar]:
    """Bars of the arms with a known peak, on one scale of bytes.

    Args:
        series: for the spread over the steps.
        coarse: split allocated memory into live and wasted only.
    """
    known = [(arm, arm.peak_bytes) for arm in arms if arm.peak_bytes]
    largest = max((peak.reserved for _, peak in known), default=0) or 1
    spreads = {one.arm: _spread(one) for one in series}
    return [
        MemoryBar(
            arm, peak, 100 * peak.reserved / largest, _pieces(arm, largest, coarse),
            spreads.get(arm.arm),
        )
        for arm, peak in known
    ]  # fmt: skip


def _pieces(arm: ArmResult, largest: int, coarse: bool) -> list[tuple[str, float, float]]:
    pieces: list[tuple[str, float, float]] = []
    start = 0.0
    for name in _COARSE if coarse else _STATES:
        width = 100 * (arm.bytes_of(getattr(arm.peak, name)) or 0) / largest
        if width and name != "free":
            pieces.append((name, start, width))
        start += width
    return pieces


def _spread(series: Series) -> Message | None:
    """Live share of the allocated memory over the steps with running requests."""
    shares = [row.utilisation for row in series.rows if row.running]
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return message("report.bars.spread", low=min(known), high=max(known))


@dataclass(frozen=True, slots=True)
class Hero:
    """The first screen: a title, a bar without paging and one with it, and three facts."""

    title: Keyed
    bars: list[tuple[str, MemoryBar]]
    facts: list[tuple[Keyed, str | None]]


def hero(results: Results) -> Hero | None:
    """Compare both caches; None without figures of both, or for an experiment.

    Facts have the anchor of the section with their reasons.
    """
    contiguous, paged = contiguous_and_paged(results)
    if results.experiment or not results.headline.params or contiguous is None or paged is None:
        return None
    bars = memory_bars((contiguous, paged), coarse=True)
    if len(bars) < 2:
        return None
    return Hero(
        _title(results, contiguous, paged),
        list(zip(("contiguous", "paged"), bars, strict=True)),
        _facts(results),
    )


def _title(results: Results, contiguous: ArmResult, paged: ArmResult) -> Keyed:
    factor = next(one.text.params for one in results.claims if one.id == "waste").get("factor")
    if not factor or factor < _LEAST_FACTOR:
        return Keyed(results.headline, "results.headline")
    equal = {one.reference for one in results.compared}
    equal |= {one.arm for one in results.compared if one.equal}
    kind = "same" if {contiguous.arm, paged.arm} <= equal else "other"
    title = message(f"report.hero.title_{kind}", factor=factor)
    return Keyed(title, "results.claims[waste].text.params.factor")


def _facts(results: Results) -> list[tuple[Keyed, str | None]]:
    params = results.headline.params
    facts: list[tuple[Keyed, str | None]] = [
        (Keyed(message("report.hero.fits", **params), "results.headline.params"), None)
    ]
    if "kv_dtype" in params:
        smaller = message("report.hero.smaller", **params)
        facts.append((Keyed(smaller, "results.headline.params.kv_fits"), None))
    facts.append((Keyed(_speed(results), "results.claims[throughput].verdict"), "claims"))
    if results.equal_reserved:
        flat = message("report.hero.process", budget=params["budget"])
        facts.append((Keyed(flat, "results.headline.params.budget"), "checks"))
    return facts


def _speed(results: Results) -> Message:
    """Paging's factors with equal concurrency and with more requests, if both are known."""
    claim = next(one for one in results.claims if one.id == "throughput")
    parts, params = second_parts(results), claim.text.params
    if claim.verdict != "shown" or parts is None:
        return message(f"report.hero.speed_{claim.verdict}", **params)
    slabs, paged = parts
    figures = {
        "factor": params["factor"],
        "requests": paged.requests,
        "slabs": slabs.running,
        "paged": paged.running,
    }
    same = factor_at_equal_concurrency(results)
    if same is None:
        return message("report.hero.speed_second", **figures)
    return message("report.hero.speed_both", same=same, **figures)
