"""Whether an ordinary run shows that paging makes generation faster."""

from __future__ import annotations

from experiment.config import MARGINS, percent_of
from experiment.differences import products_differ
from experiment.gains import disturbed
from experiment.messages import message
from experiment.results import ArmResult, Claim, Results

# Who runs for less than this meets moments in which the machine is slower with all of its run.
_SHORT_S = 1.0
# Without more requests at a time than this a faster run with blocks is chance, not paging.
_MORE = 1.05
# What the paged arm and one of Transformers' differ in; by whether matrix products are among it.
_KINDS = {
    True: "differs.kinds_products",
    False: "differs.kinds",
    None: "differs.kinds_unknown",
}
_CONTIGUOUS = ("contiguous.batch", "contiguous.sequential")


def throughput(results: Results, margin: float | None = None) -> Claim:
    """Paging makes generation faster: only an arm that differs in paging alone can tell.

    ``margin`` is a share that is no difference yet; None: as :data:`MARGINS` says by their time.
    """
    slabs = results.arm("slabs")
    contiguous, paged = contiguous_and_paged(results)
    if slabs is not None and paged is not None:
        if products_differ(slabs, paged):
            text = message("claim.throughput.unlike")
            return Claim(id="throughput", verdict="untested", text=text)
        if disturbed((slabs, paged), results.environment):
            text = message("claim.throughput.busy")
            return Claim(id="throughput", verdict="untested", text=text)
        return _paging_alone(slabs, paged, _margin(slabs, paged) if margin is None else margin)
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
    return Claim(id="throughput", verdict="not_shown", text=message(key, **figures))


def _margin(*arms: ArmResult) -> float:
    """Each arm runs once: a smaller difference is within what machines do by themselves."""
    short = any((arm.generate_s or 0.0) < _SHORT_S for arm in arms)
    return MARGINS["quick" if short else "full"]


def _paging_alone(slabs: ArmResult, paged: ArmResult, margin: float) -> Claim:
    """The same engine with slabs and with blocks: the difference is paging's."""
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
    return Claim(id="throughput", verdict="shown" if shown else "not_shown", text=text)


def _more_at_once(slabs: ArmResult, paged: ArmResult) -> bool:
    """Whether paging let clearly more requests run: else a faster run is chance."""
    if slabs.mean_running is None or paged.mean_running is None:
        return False
    return paged.mean_running > slabs.mean_running * _MORE


def _prefix_hits(arm: ArmResult) -> int:
    """Prompt tokens that the arm found in its prefix cache."""
    found = arm.prefix_cache or {}
    return found.get("hit_cross", 0) + found.get("hit_batch", 0)


def contiguous_and_paged(results: Results) -> tuple[ArmResult | None, ArmResult | None]:
    """The preallocated arm that is closest to the paged one, a batch if it ran; the paged one.

    The growing cache is no such arm: it neither reserves nor wastes.
    """
    contiguous = next((arm for name in _CONTIGUOUS if (arm := results.arm(name))), None)
    return contiguous, results.arm("paged")


def _factor(arm: ArmResult, base: ArmResult | None) -> float | None:
    if base is None or not base.tokens_per_s or not arm.tokens_per_s:
        return None
    return arm.tokens_per_s / base.tokens_per_s


def untested_claim(claim: str) -> Claim:
    """A claim for which the figures are not there."""
    return Claim.model_validate(
        {"id": claim, "verdict": "untested", "text": message(f"claim.{claim}.untested")}
    )
