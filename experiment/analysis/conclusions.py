"""Conclusions of a run: headline, claims with verdicts, equality of tokens, as keys and numbers.

A verdict is "shown" only if this run's own figures support the claim; otherwise "not_shown" or
"untested", with the reason.
"""

from __future__ import annotations

import math
from typing import Any

from experiment.analysis.arm_results import arm_results
from experiment.analysis.differences import differences
from experiment.analysis.gains import (
    BUSY,
    cores_before,
    disturbed,
    gains,
    withhold_disturbed_factors,
)
from experiment.analysis.results import ArmResult, Claim, Margin, Results, TokenComparison
from experiment.analysis.throughput_claim import (
    claim,
    contiguous_and_paged,
    second_parts,
    throughput,
    untested_claim,
)
from experiment.events import (
    DecodeGraphsReady,
    DecodeGraphsUsed,
    EnvironmentProbed,
    KernelChosen,
    ModelPrepared,
    Notice,
    PoolReserved,
    RunFinished,
    RunResumed,
    TokenMargin,
    WorkloadReady,
)
from experiment.events.sampling import SamplingConfig
from experiment.machine.background_load import BUSY_BEFORE, is_busy
from experiment.record.checksums import is_measured
from experiment.record.log import Record
from experiment.text.messages import Message, arm_message, message


def kernel_facts(record: Record) -> list[Message]:
    """Attention kernel and graphs of each arm of the engine, and why no faster ones."""
    used = {event.arm: event for event in record.of(DecodeGraphsUsed)}
    graphs = {event.arm: event for event in record.of(DecodeGraphsReady)}
    facts: list[Message] = []
    for chosen in record.of(KernelChosen):
        if chosen.device != "cuda":
            facts += [_kernel(chosen)] if chosen.reason else []
            continue
        facts.append(_kernel(chosen))
        if ready := graphs.get(chosen.arm):
            facts.append(_graphs(ready, used.get(chosen.arm)))
    return facts


def _kernel(chosen: KernelChosen) -> Message:
    figures = {"arm": arm_message(chosen.arm), "kernel": chosen.kernel}
    if chosen.reason is None:
        return message("kernel.chosen", **figures)
    return message("kernel.chosen_why", **figures, reason=chosen.reason.model_dump())


def _graphs(ready: DecodeGraphsReady, used: DecodeGraphsUsed | None) -> Message:
    if not ready.sizes:
        reason = ready.reason.model_dump() if ready.reason else None
        return message("graphs.none", arm=arm_message(ready.arm), reason=reason)
    kind = message("graphs.compiled" if ready.asked == "compiled" else "graphs.plain")
    return message(
        "graphs.used",
        kind=kind.model_dump(),
        arm=arm_message(ready.arm),
        sizes=", ".join(map(str, ready.sizes)),
        seconds=ready.capture_s,
        bytes=ready.static_bytes,
        reserved=ready.reserved_bytes,
        steps=used.steps if used else None,
        rows=used.rows if used else None,
        padding=used.padding_rows if used else None,
    )


# Shares of memory that differ by less are equal: about one block.
_SAME_SHARE = 0.01
# Each request has its own generator, so sampled tokens do not depend on the batch.
_OWN_GENERATORS = ("slabs", "paged")
# Explicit bits of the mantissa.
_FRACTION_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}


def evaluate(record: Record) -> Results:
    """Compute every result of a run from its log."""
    arms = arm_results(record)
    environment = record.first(EnvironmentProbed)
    machine = environment.environment if environment else None
    finished = record.of(RunFinished)
    results = Results(
        status=finished[-1].status if finished else "failed",
        arms=arms,
        tokens=[
            _with_margin(one, record) for one in compare_tokens(arms, _sampling(record).greedy)
        ],
        headline=message("headline.none"),
        claims=[],
        gains=withhold_disturbed_factors(gains(arms), disturbed(arms, machine), message(BUSY)),
        fairness=_fairness(record),
        notes=_notes(record, cores_before(machine)),
        quantized=quantized_caches(record, arms),
        kernels=kernel_facts(record),
        differences=differences(record, arms),
        environment=machine,
    )
    return results.model_copy(
        update={
            "headline": headline(results),
            "claims": [
                waste(results),
                concurrency(results),
                stability(results),
                throughput(results, _configured_margin(record)),
            ],
        }
    )


def compare_tokens(arms: list[ArmResult], greedy: bool = True) -> list[TokenComparison]:
    """Compare each finished arm with the first finished one, token by token.

    With random sampling, only arms with the same random numbers are compared.
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
    """Memory saved and error measured for each cache in another precision."""
    model = record.first(ModelPrepared)
    texts: list[Message] = []
    for arm in arms:
        if arm.quantization is None:
            continue
        figures: dict[str, Any] = dict(arm.quantization)
        name = _arm_name(arm)
        small, plain = figures["block_bytes"], figures["plain_block_bytes"]
        size = figures["block_size"]
        per_token = {"bytes": small / size, "plain_bytes": plain / size, "share": small / plain}
        texts.append(message("quantized.memory", **{**figures, "arm": name, **per_token}))
        same = figures["same_token"] / figures["positions"]
        dtype = model.dtype if model else None
        texts.append(
            message("quantized.error", **{**figures, "arm": name, "dtype": dtype, "same": same})
        )
    return texts


def _arm_name(arm: ArmResult) -> dict[str, Any]:
    return arm_message(arm.arm).model_dump()


def headline(results: Results) -> Message:
    """live / allocated at the peak, and requests of this shape that fit in the budget."""
    contiguous, paged = contiguous_and_paged(results)
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
    # The saving of a smaller precision is not paging's.
    return message("headline.quantized", kv_dtype=paged.kv_dtype, kv_fits=paged.fits, **figures)


def waste(results: Results) -> Claim:
    """Claim: paging wastes less of the allocated memory."""
    contiguous, paged = contiguous_and_paged(results)
    if contiguous is None or paged is None or not contiguous.peak or not paged.peak:
        return untested_claim("waste")
    before, after = _wasted_share(contiguous), _wasted_share(paged)
    if before is None or after is None:
        return untested_claim("waste")
    held = paged.peak.allocated
    figures: dict[str, Any] = {
        "contiguous": before,
        "paged": after,
        "factor": contiguous.peak.allocated / held if held else None,
        "contiguous_bytes": contiguous.bytes_of(contiguous.peak.wasted),
        # In the model's precision: the saving of a smaller one is not paging's.
        "paged_bytes": contiguous.bytes_of(paged.peak.wasted),
    }
    return claim("waste", after < before - _SAME_SHARE, **figures)


def concurrency(results: Results) -> Claim:
    """Claim: more requests run concurrently in the same budget."""
    parts = second_parts(results)
    if parts is None:
        return untested_claim("concurrency", message("claim.concurrency.second_part"))
    slabs, paged = parts
    if not slabs.running or not paged.running:
        return untested_claim("concurrency", slabs.reason or paged.reason)
    return claim(
        "concurrency",
        paged.running > slabs.running,
        "measured",
        requests=paged.requests,
        slabs=slabs.running,
        paged=paged.running,
        factor=paged.running / slabs.running,
    )


def stability(results: Results) -> Claim:
    """Claim: paged memory varies less over the run."""
    contiguous, paged = contiguous_and_paged(results)
    if contiguous is None or paged is None:
        return untested_claim("stability")
    before, after = contiguous.reserved_variation, paged.reserved_variation
    if before is None or after is None:
        return untested_claim("stability")
    growing = results.arm("contiguous.growing")
    shown = after < before - _SAME_SHARE
    return claim(
        "stability",
        shown,
        "not_shown_growing" if growing and not shown else None,
        contiguous=before,
        paged=after,
        growing=growing.reserved_variation if growing else None,
    )


def _wasted_share(arm: ArmResult) -> float | None:
    used = arm.peak.utilisation if arm.peak else None
    return None if used is None else 1 - used


def _compare(arm: ArmResult, reference: ArmResult) -> TokenComparison:
    expected = {request.request: request.tokens for request in reference.requests}
    generated = {request.request: request.tokens for request in arm.requests}
    pairs = [(generated[each], expected[each]) for each in generated if each in expected]
    different = first_differences(arm, reference)
    return TokenComparison(
        arm=arm.arm,
        reference=reference.arm,
        requests=max(len(arm.requests), len(expected)),
        equal_requests=sum(mine == theirs for mine, theirs in pairs),
        first_difference=different[0] if different else None,
        tokens=sum(max(map(len, pair)) for pair in pairs),
        equal_tokens=sum(_common_beginning(*pair) for pair in pairs),
        kv_dtype=arm.kv_dtype,
        reference_kv_dtype=reference.kv_dtype,
    )


def first_differences(arm: ArmResult, reference: ArmResult) -> list[tuple[int, int]]:
    """(request, index of the first different token) of every request with different tokens."""
    expected = {request.request: request.tokens for request in reference.requests}
    pairs = ((r.request, r.tokens, expected.get(r.request, [])) for r in arm.requests)
    return [
        (request, _common_beginning(tokens, wanted))
        for request, tokens, wanted in pairs
        if tokens != wanted
    ]


def _not_compared(arm: ArmResult, reference: ArmResult) -> TokenComparison:
    return TokenComparison(
        arm=arm.arm,
        reference=reference.arm,
        requests=max(len(arm.requests), len(reference.requests)),
        equal_requests=None,
        first_difference=None,
        reason=message("tokens.random"),
    )


def _configured_margin(record: Record) -> float | None:
    """Relative difference tolerated between processes; None if not configured."""
    experiment = record.started.config.get("experiment")
    margin = experiment.get("margin") if isinstance(experiment, dict) else None
    return float(margin) if isinstance(margin, int | float) else None


def _sampling(record: Record) -> SamplingConfig:
    workload = record.first(WorkloadReady)
    return workload.sampling if workload else SamplingConfig()


def sampling_figures(sampling: SamplingConfig) -> dict[str, Any]:
    """Sampling parameters for a text; a disabled filter is named, because a dash means unknown."""
    off = message("sampling.off").model_dump()
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or off,
        "top_p": sampling.top_p if sampling.top_p < 1 else off,
        "seed": sampling.seed,
    }


def _sampling_texts(sampling: SamplingConfig) -> list[Message]:
    """How every arm chooses tokens."""
    if sampling.greedy:
        texts = [message("fairness.stop")]
    else:
        texts = [message("fairness.random", **sampling_figures(sampling))]
    if sampling.beam_width > 1:
        texts = [message("fairness.beams", width=sampling.beam_width)]
    if sampling.n > 1:
        texts.append(message("fairness.samples", n=sampling.n))
    return texts


def _common_beginning(tokens: list[int], wanted: list[int]) -> int:
    """Number of tokens before the first difference."""
    pairs = zip(tokens, wanted, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    return min(len(tokens), len(wanted)) if index is None else index


def _with_margin(comparison: TokenComparison, record: Record) -> TokenComparison:
    """Add the recorded logits at the first difference, and all margins."""
    model = record.first(ModelPrepared)
    pair = (comparison.arm, comparison.reference)
    # A resumed run measures the same places again.
    margins = {
        (one.request, one.index): one
        for one in record.of(TokenMargin)
        if (one.arm, one.reference) == pair
    }
    if model is None or comparison.first_difference not in margins:
        return comparison
    first = margins[comparison.first_difference]
    logits = [(one.margin, max(map(abs, one.logits))) for one in margins.values()]
    ulps = [in_ulps(*each, model.dtype) for each in logits]
    known = [each for each in ulps if each is not None]
    margin = Margin(
        tokens=first.tokens, logits=first.logits, margin=first.margin, dtype=model.dtype,
        places=list(margins), ulps=known if len(known) == len(ulps) else [],
    )  # fmt: skip
    return comparison.model_copy(update={"margin": margin})


def in_ulps(margin: float, logit: float, dtype: str) -> float | None:
    """Convert a difference to units in the last place of a logit; None: unknown precision or logit.

    For example, one unit at a float16 logit of -100 is 0.06.
    """
    bits = _FRACTION_BITS.get(dtype)
    if bits is None or not logit or not math.isfinite(logit):
        return None
    return float(margin / 2 ** (math.floor(math.log2(abs(logit))) - bits))


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
        *_sampling_texts(workload.sampling),
        message("fairness.process"),
    ]


def _precision(record: Record, dtype: str) -> Message:
    small = next((pool.kv_dtype for pool in record.of(PoolReserved) if pool.kv_dtype), None)
    if small is None:
        return message("fairness.dtype", dtype=dtype)
    return message("fairness.kv_dtype", dtype=dtype, kv_dtype=small)


def _notes(record: Record, others: float | None) -> list[Message]:
    model = record.first(ModelPrepared)
    notes = list(model.notes) if model else []
    if is_busy(others):
        notes.append(message(BUSY_BEFORE, cores=others))
    notes += [n.text for n in record.of(Notice) if n.text.key != BUSY_BEFORE]  # older logs have it
    notes += [_resumed(event) for event in record.of(RunResumed)]
    return notes + reading_notes(record)


def _resumed(event: RunResumed) -> Message:
    arms = [arm if cell is None else f"{cell + 1}/{arm}" for cell, arm in event.missing]
    return message("note.resumed", n=len(arms), arms=", ".join(arms))


def reading_notes(record: Record) -> list[Message]:
    """Damaged lines and changed files, found when the run was read."""
    notes = []
    if record.damaged_lines:
        notes.append(message("note.damaged_lines", n=record.damaged_lines))
    changed = [name for name in record.changed_files if is_measured(name)]
    if changed:
        notes.append(message("note.changed_files", files=", ".join(changed)))
    return notes
