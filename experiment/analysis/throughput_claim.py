"""Claim: paging makes generation faster, judged from an ordinary run."""

from __future__ import annotations

from experiment.analysis.differences import products_differ
from experiment.analysis.gains import cores_before, disturbed
from experiment.analysis.results import ArmResult, Claim, Results, SecondPart
from experiment.config.schema import MARGINS, percent_of
from experiment.machine.background_load import is_busy
from experiment.text.messages import Message, message

# A shorter run may lie entirely in a slow phase of the machine.
_SHORT_S = 1.0
# Ratio of concurrency below which a faster run with blocks is chance.
_MORE = 1.05
# Differences between the paged arm and one of Transformers, by whether matrix products differ.
_KINDS = {
    True: "differs.kinds_products",
    False: "differs.kinds",
    None: "differs.kinds_unknown",
}
# A difference of one run that chance can explain decides nothing.
_UNDECIDED = ("not_shown_equal", "not_shown_small", "prefix_small")
_CONTIGUOUS = ("contiguous.batch", "contiguous.sequential")


def throughput(results: Results, margin: float | None = None) -> Claim:
    """Judge whether paging makes generation faster, from arms that differ in paging alone.

    ``margin`` is the relative difference to ignore; None: from :data:`MARGINS` by duration.
    """
    slabs = results.arm("slabs")
    contiguous, paged = contiguous_and_paged(results)
    if slabs is not None and paged is not None:
        if products_differ(slabs, paged):
            text = message("claim.throughput.unlike")
            return Claim(id="throughput", verdict="untested", text=text)
        if _is_disturbed(results, slabs, paged):
            text = message("claim.throughput.busy")
            return Claim(id="throughput", verdict="untested", text=text)
        parts = second_parts(results)
        if parts and (reason := parts[0].reason or parts[1].reason):
            return untested_claim("throughput", reason)
        without, with_paging = parts or (slabs, paged)
        share = _margin(without, with_paging) if margin is None else margin
        return _paging_alone(without, with_paging, share)
    sequential = results.arm("contiguous.sequential")
    if contiguous is None or paged is None or not paged.tokens_per_s:
        return untested_claim("throughput")
    figures = {
        "paged": paged.tokens_per_s,
        "batch_factor": _factor(paged, contiguous),
        "sequential_factor": _factor(paged, sequential),
        "kinds": message(_KINDS[products_differ(paged, contiguous)]).model_dump(),
    }
    key = (
        "claim.throughput.mixed"
        if sequential and sequential is not contiguous
        else "claim.throughput.mixed_one"
    )
    return Claim(id="throughput", verdict="untested", text=message(key, **figures))


def second_parts(results: Results) -> tuple[SecondPart, SecondPart] | None:
    """Second parts of the slab and the paged arm; None if either has none."""
    slabs, paged = results.arm("slabs"), results.arm("paged")
    if slabs is None or paged is None or not slabs.second_part or not paged.second_part:
        return None
    return slabs.second_part, paged.second_part


def _is_disturbed(results: Results, slabs: ArmResult, paged: ArmResult) -> bool:
    """Whether there was background load while the compared rates were measured."""
    parts = second_parts(results)
    if parts is None:
        return bool(disturbed((slabs, paged), results.environment))
    before = cores_before(results.environment)
    loads = (part.others_cores for part in parts)
    return any(is_busy(before if cores is None else cores) for cores in loads)


def _margin(*arms: ArmResult | SecondPart) -> float:
    """Relative difference within the usual variation of single runs."""
    short = any((arm.generate_s or 0.0) < _SHORT_S for arm in arms)
    return MARGINS["quick" if short else "full"]


def _paging_alone(
    slabs: ArmResult | SecondPart, paged: ArmResult | SecondPart, margin: float
) -> Claim:
    """Compare the same engine with slabs and with blocks."""
    factor = _factor(paged, slabs)
    if factor is None:
        return untested_claim("throughput")
    figures = {
        "paged": paged.tokens_per_s,
        "slabs": slabs.tokens_per_s,
        "factor": factor,
        "paged_running": paged.mean_running,
        "slabs_running": slabs.mean_running,
    }
    faster, hits = factor > 1 + margin, _prefix_hits(paged)
    small = {"percent": percent_of(margin)} if factor > 1 and not faster else {}
    if hits:  # whole blocks of a prefix can be shared, a slab cannot
        return _judged("prefix_small" if small else "prefix", faster, hits=hits, **figures, **small)
    more = _more_at_once(slabs, paged)
    if faster:
        return _judged("shown" if more else "not_shown_equal", more, **figures)
    if small and more:
        return _judged("not_shown_small", False, **figures, **small)
    return _judged("not_shown", False, **figures)


def _judged(key: str, shown: bool, **figures: object) -> Claim:
    text = message(f"claim.throughput.{key}", **figures)
    verdict = "shown" if shown else "untested" if key in _UNDECIDED else "not_shown"
    return Claim.model_validate({"id": "throughput", "verdict": verdict, "text": text})


def _more_at_once(slabs: ArmResult | SecondPart, paged: ArmResult | SecondPart) -> bool:
    """Whether paging clearly increased concurrency; otherwise a faster run is chance."""
    if slabs.mean_running is None or paged.mean_running is None:
        return False
    return paged.mean_running > slabs.mean_running * _MORE


def _prefix_hits(arm: ArmResult | SecondPart) -> int:
    """Prompt tokens found in the arm's prefix cache; 0 for a second part."""
    hits = (arm.prefix_cache if isinstance(arm, ArmResult) else None) or {}
    return hits.get("hit_cross", 0) + hits.get("hit_batch", 0)


def contiguous_and_paged(results: Results) -> tuple[ArmResult | None, ArmResult | None]:
    """The preallocated arm (a batch if it ran) and the paged arm.

    The growing cache is not used: it neither reserves nor wastes.
    """
    contiguous = next((arm for name in _CONTIGUOUS if (arm := results.arm(name))), None)
    return contiguous, results.arm("paged")


def _factor(arm: ArmResult | SecondPart, base: ArmResult | SecondPart | None) -> float | None:
    if base is None or not base.tokens_per_s or not arm.tokens_per_s:
        return None
    return arm.tokens_per_s / base.tokens_per_s


def untested_claim(claim: str, reason: Message | None = None) -> Claim:
    """A claim without the necessary figures, and the reason."""
    text = reason or message(f"claim.{claim}.untested")
    return Claim.model_validate({"id": claim, "verdict": "untested", "text": text})
