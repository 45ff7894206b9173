"""Common claims about paging, each with the figure that the experiments measured.

    experiments ─► found ─► a figure for each claim ─► shown: it reaches the claimed value
                                                       not shown: it does not
                                                       untested: there is no figure

A claimed range counts as shown from its lower end; where the paper prints a figure per setting,
each setting is compared with its own. Only counts and times of these runs are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from experiment.analysis.experiment_results import CellResult, Finding, Verdict
from experiment.analysis.finding_text import answer
from experiment.experiments.beam import PAPER as PAPER_BEAMS
from experiment.experiments.found import Found
from experiment.experiments.paper_shares import saved_shares
from experiment.experiments.parallel_sampling import PAPER as PAPER_SAMPLES
from experiment.experiments.parallel_sampling import closed_sums
from experiment.experiments.whole import whole_gain
from experiment.text.messages import Message, message
from kvsim.core.request import final_tokens

Kind = Literal["share", "ratio", "count", "fine"]
# Minimum number of beam searches. The share that samples save has a relative standard deviation
# over 200 seeds of 31 % with 16 requests, 20 % with 32, 16 % with 40 and still 13 % with 100, which
# take two and a half times as long.
SEARCHES = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A component of a figure, or one of the values that it summarises.

    Attributes:
        name: its text is ``claims.part.<name>``.
        least: the claimed value, if this part is judged separately.
        of: the setting.
    """

    name: str
    value: float
    least: float | None = None
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The figure of a claim.

    Attributes:
        low: lower bound by the repeats of a time; None for a count.
        high: upper bound.
        reached: whether it supports the claim; None: decided by ``Claim.least``.
        unclear: why it is inconclusive; None if it is not.
        note: a further condition, for any verdict.
    """

    value: float
    low: float | None = None
    high: float | None = None
    parts: tuple[Part, ...] = ()
    reached: bool | None = None
    unclear: Message | None = None
    note: Message | None = None


Figure = Callable[[Found], Seen | None]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim.

    Attributes:
        name: its text is ``claims.<name>``.
        experiment: the experiment that tests it.
        least: the claimed value: a lower bound, or an upper one if ``at_most``.
        figure: returns its figure, or the reason if there is none.
        finding: the finding that the figure comes from; it explains a missing verdict, or one that
            contradicts the figure.
    """

    name: str
    experiment: str
    kind: Kind
    least: float
    figure: Callable[[Found], Seen | Message | None]
    at_most: bool = False
    finding: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with its measured figure, or None.

    ``reason``: why there is no figure; with one, the evidence against it or a further condition.
    """

    claim: Claim
    seen: Seen | None
    verdict: Verdict
    reason: Message | None = None


def judge(found: Mapping[str, Found], unsound: Mapping[str, Message] | None = None) -> list[Judged]:
    """Judge every claim by the experiments in ``found``, keyed by name.

    ``unsound``: why other experiments cannot be used.
    """
    reasons = unsound or {}
    return [_judge(each, found.get(each.experiment), reasons) for each in CLAIMS]


def needed() -> tuple[str, ...]:
    """Names of the experiments that the claims need, without duplicates."""
    return tuple(dict.fromkeys(claim.experiment for claim in CLAIMS))


def _judge(claim: Claim, found: Found | None, unsound: Mapping[str, Message]) -> Judged:
    if found is None:
        missing = unsound.get(claim.experiment, message("claims.why.not_run"))
        return Judged(claim, None, "untested", missing)
    seen = claim.figure(found)
    if seen is None or isinstance(seen, Message):
        return Judged(claim, None, "untested", seen or _why(claim, found))
    if seen.unclear is not None:
        return Judged(claim, seen, "untested", seen.unclear)
    if _reached(claim, seen):
        return Judged(claim, seen, "shown", seen.note)
    return Judged(claim, seen, "not_shown", _against(claim, seen, found) or seen.note)


def _against(claim: Claim, seen: Seen, found: Found) -> Message | None:
    """Evidence of the finding against a figure that reaches the claimed value."""
    if claim.finding is None or claim.at_most or seen.value < claim.least:
        return None
    finding = _find(found, claim.finding)
    against = finding is not None and finding.verdict == "not_shown"
    return answer(finding) if finding is not None and against else None


def _why(claim: Claim, found: Found) -> Message:
    """Why there is no figure."""
    finding = _find(found, claim.finding) if claim.finding else None
    if finding is None or finding.verdict != "untested":
        return message("claims.why.no_figure")
    return answer(finding)


def _reached(claim: Claim, seen: Seen) -> bool:
    """Whether every repeat (every round, if interleaved) reaches the claimed value."""
    if seen.reached is not None:
        return seen.reached
    if claim.at_most:
        return (seen.value if seen.high is None else seen.high) < claim.least
    return (seen.value if seen.low is None else seen.low) >= claim.least


def _waste(found: Found, arm: str) -> float | None:
    """Waste of an arm at the highest concurrency."""
    return found.value(found.last("slabs", "paged"), arm, "waste")


def _used(found: Found) -> Seen | None:
    waste = _waste(found, "paged")
    return None if waste is None else Seen(1 - waste)


def _wasted(found: Found) -> Seen | None:
    waste = _waste(found, "slabs")
    return None if waste is None else Seen(waste, note=_long(found, found.last("slabs", "paged")))


def _saved(found: Found) -> Seen | Message | None:
    """Memory allocated in blocks relative to slabs, at the highest equal concurrency."""
    unlike = None
    for cell in reversed(list(found.with_arms("slabs", "paged"))):
        steps = [found.value(cell, arm, "steps") for arm in ("slabs", "paged")]
        slabs, paged = (found.value(cell, arm, "waste") for arm in ("slabs", "paged"))
        if None in steps or slabs is None or paged is None or paged >= 1:
            continue
        if steps[0] == steps[1]:
            return Seen(1 - (1 - slabs) / (1 - paged), note=_long(found, cell))
        unlike = message("claims.why.steps_differ")
    return unlike


def _at_once(found: Found) -> Seen | None:
    seen = _finding("at_once")(found)
    cell = found.last("slabs", "paged")
    return None if seen is None else replace(seen, note=_long(found, cell))


def _long(found: Found, cell: CellResult | None) -> Message | None:
    """Length of the requests relative to a slab: a chosen setting that determines the gain."""
    lengths: Any = found.config.experiment.options.get("lengths")
    if cell is None or not lengths:
        return None
    mean = fmean(final_tokens(*lengths[n % len(lengths)]) for n in range(cell.requests))
    return message("claims.why.lengths", slots=cell.max_length, mean=mean)


def _finding(name: str) -> Figure:
    """Use the estimate of a finding; a claim is not shown unless its finding is."""

    def seen(found: Found) -> Seen | None:
        finding = _find(found, name)
        number = _shown(finding)
        if finding is None or number is None:
            return None
        return Seen(number, reached=False if finding.verdict == "not_shown" else None)

    return seen


def _find(found: Found, name: str) -> Finding | None:
    from experiment.experiments.registry import find_experiment

    spec = find_experiment(found.config.experiment.name or "")
    return next((each for each in spec.findings(found) if each.id == name), None)


def _shown(finding: Finding | None) -> float | None:
    """The estimate of a finding with a verdict."""
    judged = finding is not None and finding.verdict != "untested"
    return finding.estimate if finding is not None and judged else None


def _context(found: Found) -> Seen | None:
    """Ratio of two tested lengths, with the next tested ones and the concurrent requests."""
    seen, finding = _finding("together")(found), _find(found, "together")
    others: Any = found.config.experiment.options.get("others")
    if seen is None or finding is None or not others:
        return seen
    tried = sorted(int(cell.values["context"]) for cell in found.cells)
    paged, slabs = (int(side.value or 0) for side in finding.sides)
    limits = {"slabs": _up_to(slabs, tried), "paged": _up_to(paged, tried)}
    mean = fmean(final_tokens(*pair) for pair in others)
    return replace(seen, note=message("claims.why.context", n=len(others), mean=mean, **limits))


def _up_to(longest: int, tried: list[int]) -> object:
    """The longest context at which all ran, and the next tested one."""
    longer = next((each for each in tried if each > longest), None)
    if longer is None:
        return message("claims.why.context_most", at=longest).model_dump()
    return message("claims.why.context_next", at=longest, longer=longer).model_dump()


def _lookup(found: Found) -> Seen | None:
    """The block table's largest share of a decode step; the finding considers its spread."""
    finding = _find(found, "of_step")
    share = _shown(finding)
    if finding is None or share is None:
        return None
    return Seen(share, finding.low, finding.high, reached=finding.verdict == "shown")


def _throughput(found: Found) -> Seen | None:
    """Our paged engine at the highest concurrency, over plain Transformers.

    A product of factors, only the last of which is paging's; None unless all are known.
    """
    whole = whole_gain(found)
    if whole is None or not whole.complete or whole.open is not None:
        return None
    parts = tuple(Part(name, step.factor) for name, step in whole.steps.items())
    factor = whole.faster
    return Seen(factor.factor, factor.low, factor.high, parts, note=whole.plain.note)


def _samples(found: Found) -> Seen | None:
    """Each number of samples, with the predicted share of many more such requests.

    If only one of the two reaches the claimed value, the result depends on the sampled lengths.
    """
    seen = _like_paper("samples", "samples", PAPER_SAMPLES)(found)
    if seen is None:
        return None
    sizes = {int(cell.values["samples"]): cell.block_size for cell, _ in saved_shares(found)}
    many = closed_sums(found.config, sizes)
    more = tuple(Part("samples_many", share, of=of) for of, share in many.items())
    reach = all(share >= PAPER_SAMPLES.get(of, 0) for of, share in many.items())
    formula = _find(found, "formula")
    exact = formula is not None and formula.verdict == "shown"
    drawn = None
    if exact and reach != seen.reached:
        drawn = message("claims.why.few_drawn" if reach else "claims.why.lucky_draw")
    return replace(seen, parts=(*seen.parts, *more), unclear=drawn)


def _beams(found: Found) -> Seen | None:
    """Each beam width, with the number of searches; there is no formula for many more.

    No verdict with few searches, which depend on the sampled lengths, or with random weights, whose
    beams diverge as no trained model's do.
    """
    seen = _like_paper("beams", "beam_width", PAPER_BEAMS)(found)
    if seen is None:
        return None
    searches = min(cell.requests for cell, _ in saved_shares(found))
    drawn = message("claims.why.beams_drawn", n=searches, least=SEARCHES)
    unclear = drawn if searches < SEARCHES else None
    if found.random_weights:
        unclear = message("claims.why.beams_random")
    return replace(seen, unclear=unclear, note=message("claims.why.beams_searched", n=searches))


def _like_paper(name: str, axis: str, paper: Mapping[int, float]) -> Figure:
    """Compare each setting with the paper's figure for it; the value is that of the worst."""

    def seen(found: Found) -> Seen | None:
        parts = tuple(
            Part(name, share, paper[at], at)
            for cell, share in saved_shares(found)
            if (at := int(cell.values[axis])) in paper
        )
        if not parts:
            return None
        worst = min(parts, key=lambda part: part.value / (part.least or 1))
        reached = all(part.value >= (part.least or 0) for part in parts)
        return Seen(worst.value, parts=parts, reached=reached)

    return seen


def _refused(found: Found) -> Seen | None:
    """Steps in which the arena refused a request due to fragmentation, next to the paged arm's."""
    cell = found.last("paged")
    steps = found.value(cell, "paged", "first_fit_refused_steps")
    if cell is None or steps is None:
        return None
    counts = {name: found.value(cell, "paged", name) for name in ("steps", "preemptions")}
    if None in counts.values():
        return Seen(steps)
    return Seen(steps, note=message("claims.why.blocks", requests=cell.requests, **counts))


def _steadier(found: Found) -> Seen | None:
    """Swing of the bytes held for KV while requests run: paged, and a growing cache.

    And slabs: if they swing no more, the steadiness is not due to paging.
    """
    cell = found.last("contiguous.growing", "slabs", "paged")
    arms = {"growing": "contiguous.growing", "slabs": "slabs", "paged": "paged"}
    swings = {name: found.value(cell, arm, "reserved_swing") for name, arm in arms.items()}
    known = {name: float(swing) for name, swing in swings.items() if swing is not None}
    if len(known) < len(arms):
        return None
    reached = known["paged"] < min(known["growing"], known["slabs"])
    reserved = known["slabs"] <= known["paged"] < known["growing"]
    note = message("claims.why.reserved") if reserved else None
    parts = tuple(Part(f"swing_{name}", swing) for name, swing in known.items())
    return Seen(known["paged"], parts=parts, reached=reached, note=note)


CLAIMS = (
    Claim("saved", "capacity", "share", 0.70, _saved),
    Claim("context", "context", "ratio", 2.0, _context, finding="together"),
    Claim("at_once", "capacity", "ratio", 3.0, _at_once, finding="at_once"),
    Claim("throughput", "concurrency", "ratio", 24.0, _throughput, finding="whole"),
    Claim("used", "capacity", "share", 0.96, _used),
    Claim("wasted", "capacity", "share", 0.60, _wasted),
    Claim("lookup", "lookup", "fine", 0.01, _lookup, at_most=True, finding="of_step"),
    Claim("holes", "holes", "count", 1, _refused),
    Claim("samples", "parallel-sampling", "fine", 0.06, _samples),
    Claim("beams", "beam", "fine", 0.37, _beams),
    Claim("steadier", "capacity", "share", 0, _steadier),
)  # fmt: skip
