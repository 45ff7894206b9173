"""What is commonly claimed of paging, each claim with the figure that the experiments found here.

    experiments ─► found ─► a figure of each claim ─► shown: it reaches what is claimed
                                                      not shown: it stays below
                                                      untested: the figure is not there

A claim of a range is shown from its lower end on; where the paper prints a figure for each setting,
each setting is held against its own. Only counts and times of this run are used.
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
# Fewer beam searches than these are a matter of which ones were drawn: by their lengths alone what
# samples save scatters (its standard deviation over 200 seeds) by 31 % in draws of 16, 20 % of 32,
# 16 % of 40 and no less than 13 % even of 100, which take two and a half times as long.
SEARCHES = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A number that a figure is made of, or one of those that it stands for.

    Attributes:
        name: its text is ``claims.part.<name>``.
        least: what it is held against, where it is judged by itself.
        of: the setting that it was seen at.
    """

    name: str
    value: float
    least: float | None = None
    of: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """The figure of a claim.

    Attributes:
        low: the least that the repeats of a time allow; None of a count.
        high: the most.
        reached: whether it bears the claim out; None: that is decided by ``Claim.least``.
        unclear: why it decides nothing, where it does not.
        note: what else decides it, whatever the verdict.
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
        experiment: that shows it.
        least: from where on it is shown; of ``at_most`` claims, below which.
        figure: its figure; where there is none and it knows why, the reason.
        finding: of the experiment that the figure comes from; where that gives no verdict, or one
            against a figure that reaches what is claimed, its text says why.
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
    """A claim with its figure here; None where there is none, and ``reason`` says why.

    Of a figure it says what speaks against it, or what else decides it.
    """

    claim: Claim
    seen: Seen | None
    verdict: Verdict
    reason: Message | None = None


def judge(found: Mapping[str, Found], unsound: Mapping[str, Message] | None = None) -> list[Judged]:
    """Every claim, from the experiments that were run, by their names.

    ``unsound`` says of experiments that are not in ``found`` why they cannot be used.
    """
    reasons = unsound or {}
    return [_judge(each, found.get(each.experiment), reasons) for each in CLAIMS]


def needed() -> tuple[str, ...]:
    """Experiments that the claims are judged by, each once."""
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
    """What speaks against a figure that reaches what is claimed: its finding says so."""
    if claim.finding is None or claim.at_most or seen.value < claim.least:
        return None
    finding = _find(found, claim.finding)
    against = finding is not None and finding.verdict == "not_shown"
    return answer(finding) if finding is not None and against else None


def _why(claim: Claim, found: Found) -> Message:
    """Why there is no figure: an unclear one says so itself."""
    finding = _find(found, claim.finding) if claim.finding else None
    if finding is None or finding.verdict != "untested":
        return message("claims.why.no_figure")
    return answer(finding)


def _reached(claim: Claim, seen: Seen) -> bool:
    """A time must reach what is claimed in every repeat; of two that took turns, every round."""
    if seen.reached is not None:
        return seen.reached
    if claim.at_most:
        return (seen.value if seen.high is None else seen.high) < claim.least
    return (seen.value if seen.low is None else seen.low) >= claim.least


def _waste(found: Found, arm: str) -> float | None:
    """Waste of an arm where the most requests are offered."""
    cell = found.last("slabs", "paged")
    return found.value(cell, arm, "waste") if cell else None


def _used(found: Found) -> Seen | None:
    waste = _waste(found, "paged")
    return None if waste is None else Seen(1 - waste)


def _wasted(found: Found) -> Seen | None:
    waste = _waste(found, "slabs")
    return None if waste is None else Seen(waste, note=_long(found, found.last("slabs", "paged")))


def _saved(found: Found) -> Seen | Message | None:
    """Handed out in blocks instead of slabs, at the most requests that run alike in both."""
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
    """How long its requests are beside a slab: somebody chose that, and it decides the gain."""
    lengths: Any = found.config.experiment.options.get("lengths")
    if cell is None or not lengths:
        return None
    mean = fmean(final_tokens(*lengths[n % len(lengths)]) for n in range(cell.requests))
    return message("claims.why.lengths", slots=cell.max_length, mean=mean)


def _finding(name: str) -> Figure:
    """The estimate of a finding; what the finding does not show, no claim does."""

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
    """The estimate of a finding that is judged."""
    judged = finding is not None and finding.verdict != "untested"
    return finding.estimate if finding is not None and judged else None


def _context(found: Found) -> Seen | None:
    """The quotient of two lengths that were tried, with what was tried next and what ran beside."""
    seen, finding = _finding("together")(found), _find(found, "together")
    others: Any = found.config.experiment.options.get("others")
    if seen is None or finding is None or not others:
        return seen
    tried = sorted(int(cell.values["context"]) for cell in found.cells)
    paged, slabs = (int(side.value or 0) for side in finding.sides)
    told = {"slabs": _up_to(slabs, tried), "paged": _up_to(paged, tried)}
    mean = fmean(final_tokens(*pair) for pair in others)
    return replace(seen, note=message("claims.why.context", n=len(others), mean=mean, **told))


def _up_to(longest: int, tried: list[int]) -> object:
    """The longest context at which all ran, and the next one that was tried."""
    longer = next((each for each in tried if each > longest), None)
    if longer is None:
        return message("claims.why.context_most", at=longest).model_dump()
    return message("claims.why.context_next", at=longest, longer=longer).model_dump()


def _lookup(found: Found) -> Seen | None:
    """The table's share of a decoding step where it is most; the finding heeds its spread."""
    finding = _find(found, "of_step")
    share = _shown(finding)
    if finding is None or share is None:
        return None
    return Seen(share, finding.low, finding.high, reached=finding.verdict == "shown")


def _throughput(found: Found) -> Seen | None:
    """Our paged engine with the most at a time, over plain Transformers.

    The product of steps of which the last one alone is paging's: without each of them, none.
    """
    whole = whole_gain(found)
    if whole is None or not whole.complete or whole.open is not None:
        return None
    parts = tuple(Part(name, step.factor) for name, step in whole.steps.items())
    factor = whole.faster
    return Seen(factor.factor, factor.low, factor.high, parts, note=whole.plain.told)


def _samples(found: Found) -> Seen | None:
    """Each number of samples, and below it what many more such requests would save.

    Where only one of the two reaches what is claimed, it is the draw that decides.
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
    """Each width, and of how many searches: no closed sum tells what many more would save.

    A few are a matter of which ones were drawn, and random weights part beams as no trained model
    does; of neither there is a verdict.
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
    """Each setting against the paper's own figure for it; the value is that of the worst."""

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
    """Steps in which the arena refused for its holes; what the paged arm did stands beside it."""
    cell = found.last("paged")
    steps = found.value(cell, "paged", "first_fit_refused_steps") if cell else None
    if cell is None or steps is None:
        return None
    counts = {name: found.value(cell, "paged", name) for name in ("steps", "preemptions")}
    if None in counts.values():
        return Seen(steps)
    return Seen(steps, note=message("claims.why.blocks", requests=cell.requests, **counts))


def _steadier(found: Found) -> Seen | None:
    """How far the bytes held for KV swing while requests run: paged, and a cache that grows.

    And slabs: where they swing no more, it is not paging that steadies memory.
    """
    cell = found.last("contiguous.growing", "slabs", "paged")
    if cell is None:
        return None
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
