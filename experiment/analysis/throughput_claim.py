"""Claim: paging makes generation faster, judged from an ordinary run."""

from __future__ import annotations

from typing import Any

from experiment.analysis.differences import products_differ
from experiment.analysis.experiment_results import Verdict
from experiment.analysis.gains import cores_before, disturbed
from experiment.analysis.results import ArmResult, Claim, ClaimName, Results, SecondPart
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
    slabs, sequential = results.arm("slabs"), results.arm("contiguous.sequential")
    contiguous, paged = contiguous_and_paged(results)
    if slabs is not None and paged is not None:
        if products_differ(slabs, paged):
            return untested_claim("throughput", message("claim.throughput.unlike"))
        if _is_disturbed(results, slabs, paged):
            return untested_claim("throughput", message("claim.throughput.busy"))
        parts = second_parts(results)
        if parts and (reason := parts[0].reason or parts[1].reason):
            return untested_claim("throughput", reason)
        if parts:
            is_unlike = disturbed((slabs, paged), results.environment) or _prefix_hits(paged)
            same = None if is_unlike else factor_at_equal_concurrency(results)
            return _paging_alone(*parts, margin, same)
        return _paging_alone(slabs, paged, margin)
    if contiguous is None or paged is None or not paged.tokens_per_s:
        return untested_claim("throughput")
    alone = sequential is None or sequential is contiguous
    text = message(
        f"claim.throughput.{'mixed_one' if alone else 'mixed'}",
        paged=paged.tokens_per_s,
        batch_factor=_factor(paged, contiguous),
        sequential_factor=_factor(paged, sequential),
        kinds=message(_KINDS[products_differ(paged, contiguous)]).model_dump(),
    )
    return untested_claim("throughput", text)


def second_parts(results: Results) -> tuple[SecondPart, SecondPart] | None:
    """Second parts of the slab and the paged arm; None if either has none."""
    slabs, paged = results.arm("slabs"), results.arm("paged")
    if slabs is None or paged is None or not slabs.second_part or not paged.second_part:
        return None
    return slabs.second_part, paged.second_part


def factor_at_equal_concurrency(results: Results) -> float | None:
    """Rate of the paged arm over that of slabs in the first part.

    None if unknown, or if the two ran different numbers of requests at once.
    """
    slabs, paged = results.arm("slabs"), results.arm("paged")
    gain = next((one for one in results.gains if one.step == "paging"), None)
    if slabs is None or paged is None or gain is None:
        return None
    if _more_at_once(slabs, paged) or _more_at_once(paged, slabs):
        return None
    return gain.factor


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
    slabs: ArmResult | SecondPart,
    paged: ArmResult | SecondPart,
    margin: float | None,
    same: float | None = None,
) -> Claim:
    """Compare the same engine with slabs and with blocks.

    ``same`` is the factor with as many requests at once, if known.
    """
    factor = _factor(paged, slabs)
    if factor is None:
        return untested_claim("throughput")
    margin = _margin(slabs, paged) if margin is None else margin
    figures: dict[str, Any] = {
        "paged": paged.tokens_per_s,
        "slabs": slabs.tokens_per_s,
        "factor": factor,
        "paged_running": paged.mean_running,
        "slabs_running": slabs.mean_running,
    }
    figures["measured"] = message("claim.throughput.measured", **figures).model_dump()
    shown, hits, more = factor > 1 + margin, _prefix_hits(paged), _more_at_once(slabs, paged)
    key = "shown" if shown else "not_shown"
    if not shown and factor > 1 and (hits or more):
        key, figures["percent"] = "not_shown_small", percent_of(margin)
    if hits:  # whole blocks of a prefix can be shared, a slab cannot
        key, figures["hits"] = "prefix_small" if "percent" in figures else "prefix", hits
    elif shown and not more:
        key = "not_shown_equal"
    elif shown and same is not None:
        key, figures["same"] = "shown_same", same
    return claim("throughput", shown and key not in _UNDECIDED, key, **figures)


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


def claim(name: ClaimName, shown: bool, key: str | None = None, **figures: object) -> Claim:
    """A claim with the figures of its text; ``key``: of the text, by default the verdict's."""
    verdict: Verdict = "shown" if shown else "untested" if key in _UNDECIDED else "not_shown"
    return Claim(
        id=name, verdict=verdict, text=message(f"claim.{name}.{key or verdict}", **figures)
    )


def untested_claim(name: ClaimName, reason: Message | None = None) -> Claim:
    """A claim without the necessary figures; ``reason``: None: of an arm that did not finish."""
    return Claim(id=name, verdict="untested", text=reason or message("claim.untested"))
