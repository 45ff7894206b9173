"""What a run showed: the headline, the usual claims with verdicts, equality of tokens.

A verdict is "shown" only where this run's own figures bear the claim out; where they do not, or
where the run could not tell, it says so and why. No sentence stands here: only keys and numbers.
"""

from __future__ import annotations

from typing import Any

from experiment.analysis import arm_results
from experiment.checksums import is_measured
from experiment.config import MARGINS, percent_of
from experiment.events import (
    EnvironmentProbed,
    ModelPrepared,
    Notice,
    PoolReserved,
    RunFinished,
    RunResumed,
    TokenMargin,
    WorkloadReady,
)
from experiment.gains import BUSY, disturbed, gains, told_apart
from experiment.kernel_facts import kernel_facts
from experiment.messages import Message, arm_message, message
from experiment.record import Record
from experiment.results import ArmResult, Claim, Margin, Results, TokenComparison
from experiment.sampling import SamplingConfig

# Two shares of memory that differ by less than this are called equal: a block more or less.
_SAME_SHARE = 0.01
# Each arm runs once: a smaller difference is within what machines do by themselves.
_MARGIN = MARGINS["full"]
_FASTER = 1 + _MARGIN
# Without more requests at a time than this a faster run with blocks is chance, not paging.
_MORE = 1.05
_CONTIGUOUS = ("contiguous.batch", "contiguous.sequential")
# Each of their requests draws from a generator of its own, so what else runs changes no token.
_OWN_GENERATORS = ("slabs", "paged")


def evaluate(record: Record) -> Results:
    """Compute every result of a run from its log."""
    arms = arm_results(record)
    environment = record.first(EnvironmentProbed)
    finished = record.of(RunFinished)
    results = Results(
        status=finished[-1].status if finished else "failed",
        arms=arms,
        tokens=[
            _with_margin(one, record) for one in compare_tokens(arms, _sampling(record).greedy)
        ],
        headline=message("headline.none"),
        claims=[],
        gains=told_apart(gains(arms), disturbed(arms), message(BUSY)),
        fairness=_fairness(record),
        notes=_notes(record),
        quantized=quantized_caches(record, arms),
        kernels=kernel_facts(record),
        environment=environment.environment if environment else None,
    )
    return results.model_copy(
        update={
            "headline": headline(results),
            "claims": [waste(results), stability(results), throughput(results)],
        }
    )


def compare_tokens(arms: list[ArmResult], greedy: bool = True) -> list[TokenComparison]:
    """Each arm that finished against the first one that did, token by token.

    Where random numbers are drawn, only arms that draw the same ones can be compared.
    """
    finished = [arm for arm in arms if arm.status == "finished"]
    if not finished:
        return []
    like = finished if greedy else [arm for arm in finished if arm.arm in _OWN_GENERATORS]
    reference = (like or finished)[0]
    return [
        _compare(arm, reference) if arm in like else _not_compared(arm, reference)
        for arm in finished
        if arm is not reference
    ]


def quantized_caches(record: Record, arms: list[ArmResult]) -> list[Message]:
    """For each cache in another precision: what it saves, and the error that was measured."""
    model = record.first(ModelPrepared)
    found: list[Message] = []
    for arm in arms:
        if arm.quantization is None:
            continue
        figures: dict[str, Any] = dict(arm.quantization)
        name = _arm_name(arm)
        small, plain = figures["block_bytes"], figures["plain_block_bytes"]
        size = figures["block_size"]
        per_token = {"bytes": small / size, "plain_bytes": plain / size, "share": small / plain}
        found.append(message("quantized.memory", **{**figures, "arm": name, **per_token}))
        same = figures["same_token"] / figures["positions"]
        dtype = model.dtype if model else None
        found.append(
            message("quantized.error", **{**figures, "arm": name, "dtype": dtype, "same": same})
        )
    return found


def _arm_name(arm: ArmResult) -> dict[str, Any]:
    return arm_message(arm.arm).model_dump()


def headline(results: Results) -> Message:
    """live / allocated at the peak, and how many more such requests fit in the same budget."""
    contiguous, paged = _pair(results)
    if contiguous is None or paged is None or not contiguous.peak or not paged.peak:
        return message("headline.none")
    figures: dict[str, Any] = {
        "arm": _arm_name(contiguous),
        "contiguous_share": contiguous.peak.utilisation,
        "paged_share": paged.peak.utilisation,
        "contiguous_fits": contiguous.fits,
        "paged_fits": paged.fits_plain,
        "budget": paged.budget_bytes,
    }
    if paged.kv_dtype is None:
        return message("headline.both", **figures)
    # What a smaller precision adds is no gain of paging.
    return message("headline.quantized", kv_dtype=paged.kv_dtype, kv_fits=paged.fits, **figures)


def waste(results: Results) -> Claim:
    """Paging wastes less of what it hands out."""
    contiguous, paged = _pair(results)
    if contiguous is None or paged is None or not contiguous.peak or not paged.peak:
        return _untested("waste")
    before, after = _wasted_share(contiguous), _wasted_share(paged)
    if before is None or after is None:
        return _untested("waste")
    figures = {
        "contiguous": before,
        "paged": after,
        "contiguous_bytes": contiguous.bytes_of(contiguous.peak.wasted),
        # In the model's precision: what a smaller one saves is no gain of paging.
        "paged_bytes": contiguous.bytes_of(paged.peak.wasted),
    }
    if after < before - _SAME_SHARE:
        return Claim(id="waste", verdict="shown", text=message("claim.waste.shown", **figures))
    return Claim(id="waste", verdict="not_shown", text=message("claim.waste.not_shown", **figures))


def stability(results: Results) -> Claim:
    """Paged memory varies less over the run."""
    contiguous, paged = _pair(results)
    if contiguous is None or paged is None:
        return _untested("stability")
    before, after = contiguous.reserved_variation, paged.reserved_variation
    if before is None or after is None:
        return _untested("stability")
    growing = results.arm("contiguous.growing")
    figures = {
        "contiguous": before,
        "paged": after,
        "growing": growing.reserved_variation if growing else None,
    }
    if after < before - _SAME_SHARE:
        text = message("claim.stability.shown", **figures)
        return Claim(id="stability", verdict="shown", text=text)
    key = "claim.stability.not_shown_growing" if growing else "claim.stability.not_shown"
    return Claim(id="stability", verdict="not_shown", text=message(key, **figures))


def throughput(results: Results) -> Claim:
    """Paging makes generation faster: only an arm that differs in paging alone can tell."""
    slabs = results.arm("slabs")
    contiguous, paged = _pair(results)
    if slabs is not None and paged is not None:
        if disturbed((slabs, paged)):
            text = message("claim.throughput.busy")
            return Claim(id="throughput", verdict="untested", text=text)
        return _paging_alone(slabs, paged)
    sequential = results.arm("contiguous.sequential")
    if contiguous is None or paged is None or not paged.tokens_per_s:
        return _untested("throughput")
    figures = {
        "paged": paged.tokens_per_s,
        "batch_factor": _factor(paged, contiguous),
        "sequential_factor": _factor(paged, sequential),
    }
    key = (
        "claim.throughput.mixed"
        if sequential and sequential is not contiguous
        else "claim.throughput.mixed_one"
    )
    return Claim(id="throughput", verdict="not_shown", text=message(key, **figures))


def _paging_alone(slabs: ArmResult, paged: ArmResult) -> Claim:
    """The same engine with slabs and with blocks: the difference is paging's."""
    factor = _factor(paged, slabs)
    if factor is None:
        return _untested("throughput")
    figures = {
        "paged": paged.tokens_per_s,
        "slabs": slabs.tokens_per_s,
        "factor": factor,
        "paged_running": paged.mean_running,
        "slabs_running": slabs.mean_running,
    }
    hits = _prefix_hits(paged)
    if hits:  # whole blocks of a prefix can be shared, a slab cannot
        shown = factor > _FASTER
        text = message("claim.throughput.prefix", hits=hits, **figures)
        return Claim(id="throughput", verdict="shown" if shown else "not_shown", text=text)
    if factor > _FASTER and _more_at_once(slabs, paged):
        text = message("claim.throughput.shown", **figures)
        return Claim(id="throughput", verdict="shown", text=text)
    key = "not_shown" if factor <= _FASTER else "not_shown_equal"
    if 1 < factor <= _FASTER and _more_at_once(slabs, paged):
        key, figures = "not_shown_small", {**figures, "percent": percent_of(_MARGIN)}
    return Claim(
        id="throughput", verdict="not_shown", text=message(f"claim.throughput.{key}", **figures)
    )


def _more_at_once(slabs: ArmResult, paged: ArmResult) -> bool:
    """Whether paging let clearly more requests run: else a faster run is chance."""
    if slabs.mean_running is None or paged.mean_running is None:
        return False
    return paged.mean_running > slabs.mean_running * _MORE


def _prefix_hits(arm: ArmResult) -> int:
    """Prompt tokens that the arm found in its prefix cache."""
    found = arm.prefix_cache or {}
    return found.get("hit_cross", 0) + found.get("hit_batch", 0)


def _pair(results: Results) -> tuple[ArmResult | None, ArmResult | None]:
    """The preallocated arm that is closest to the paged one, a batch if it ran; the paged one.

    The growing cache is no such arm: it neither reserves nor wastes.
    """
    contiguous = next((arm for name in _CONTIGUOUS if (arm := results.arm(name))), None)
    return contiguous, results.arm("paged")


def _wasted_share(arm: ArmResult) -> float | None:
    used = arm.peak.utilisation if arm.peak else None
    return None if used is None else 1 - used


def _factor(arm: ArmResult, base: ArmResult | None) -> float | None:
    if base is None or not base.tokens_per_s or not arm.tokens_per_s:
        return None
    return arm.tokens_per_s / base.tokens_per_s


def _untested(claim: str) -> Claim:
    return Claim.model_validate(
        {"id": claim, "verdict": "untested", "text": message(f"claim.{claim}.untested")}
    )


def _compare(arm: ArmResult, reference: ArmResult) -> TokenComparison:
    expected = {request.request: request.tokens for request in reference.requests}
    equal = tokens_in_both = tokens_equal = 0
    first: tuple[int, int] | None = None
    generated = {request.request: request.tokens for request in arm.requests}
    for request, tokens in generated.items():
        wanted = expected.get(request, [])
        same = _common_beginning(tokens, wanted)
        if request in expected:
            tokens_in_both += max(len(tokens), len(wanted))
            tokens_equal += same
        if tokens == wanted:
            equal += 1
        elif first is None:
            first = (request, same)
    return TokenComparison(
        arm=arm.arm,
        reference=reference.arm,
        requests=max(len(arm.requests), len(expected)),
        equal_requests=equal,
        first_difference=first,
        tokens=tokens_in_both,
        equal_tokens=tokens_equal,
        kv_dtype=arm.kv_dtype,
        reference_kv_dtype=reference.kv_dtype,
    )


def _not_compared(arm: ArmResult, reference: ArmResult) -> TokenComparison:
    return TokenComparison(
        arm=arm.arm,
        reference=reference.arm,
        requests=max(len(arm.requests), len(reference.requests)),
        equal_requests=None,
        first_difference=None,
        reason=message("tokens.random"),
    )


def _sampling(record: Record) -> SamplingConfig:
    workload = record.first(WorkloadReady)
    return workload.sampling if workload else SamplingConfig()


def figures_of_drawing(sampling: SamplingConfig) -> dict[str, Any]:
    """How tokens are drawn, for a text. A filter that is off says so: a dash would be unknown."""
    off = message("sampling.off").model_dump()
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or off,
        "top_p": sampling.top_p if sampling.top_p < 1 else off,
        "seed": sampling.seed,
    }


def _choice(sampling: SamplingConfig) -> list[Message]:
    """How tokens are chosen, in every arm alike."""
    if sampling.greedy:
        texts = [message("fairness.stop")]
    else:
        texts = [message("fairness.random", **figures_of_drawing(sampling))]
    if sampling.beam_width > 1:
        texts = [message("fairness.beams", width=sampling.beam_width)]
    if sampling.n > 1:
        texts.append(message("fairness.samples", n=sampling.n))
    return texts


def _common_beginning(tokens: list[int], wanted: list[int]) -> int:
    """Tokens before the first other one."""
    pairs = zip(tokens, wanted, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(tokens), len(wanted)) if index is None else index


def _with_margin(comparison: TokenComparison, record: Record) -> TokenComparison:
    """Add the logits at the first difference, where they are on record."""
    model = record.first(ModelPrepared)
    for seen in record.of(TokenMargin):
        same = (seen.arm, seen.reference) == (comparison.arm, comparison.reference)
        if model and same and (seen.request, seen.index) == comparison.first_difference:
            margin = Margin(
                tokens=seen.tokens, logits=seen.logits, margin=seen.margin, dtype=model.dtype
            )
            return comparison.model_copy(update={"margin": margin})
    return comparison


def _fairness(record: Record) -> list[Message]:
    model, workload = record.first(ModelPrepared), record.first(WorkloadReady)
    if model is None or workload is None:
        return []
    return [
        message("fairness.weights", sha256=model.weights_sha256[:12]),
        message("fairness.tokens", n=sum(len(r[0].token_ids) for r in workload.samples())),
        _precision(record, model.dtype),
        message("fairness.budget", budget=workload.budget_bytes),
        message("fairness.length", length=workload.max_length),
        *_choice(workload.sampling),
        message("fairness.process"),
    ]


def _precision(record: Record, dtype: str) -> Message:
    small = next((pool.kv_dtype for pool in record.of(PoolReserved) if pool.kv_dtype), None)
    if small is None:
        return message("fairness.dtype", dtype=dtype)
    return message("fairness.kv_dtype", dtype=dtype, kv_dtype=small)


def _notes(record: Record) -> list[Message]:
    model = record.first(ModelPrepared)
    notes = list(model.notes) if model else []
    notes += [notice.text for notice in record.of(Notice)]
    notes += [_resumed(event) for event in record.of(RunResumed)]
    return notes + reading_notes(record)


def _resumed(event: RunResumed) -> Message:
    arms = [arm if cell is None else f"{cell + 1}/{arm}" for cell, arm in event.missing]
    return message("note.resumed", n=len(arms), arms=", ".join(arms))


def reading_notes(record: Record) -> list[Message]:
    """What was found wrong with the files of a run when it was read again."""
    notes = []
    if record.damaged_lines:
        notes.append(message("note.damaged_lines", n=record.damaged_lines))
    changed = [name for name in record.changed_files if is_measured(name)]
    if changed:
        notes.append(message("note.changed_files", files=", ".join(changed)))
    return notes
