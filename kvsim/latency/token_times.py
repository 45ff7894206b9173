"""Costs of a step from the times of tokens.

    tokens of A  ──|────────|────────|────────────────|────────|──
    tokens of B  ──|────────|────────|────────────────|─ preempted
    first of C   ─────────────────────────────────────|

A step ends with a token of each request that decodes, so tokens that arrive together show when
steps end, and the tokens show their work: first ones a prompt, others a decode. A request without a
token in several steps was preempted: it did not decode in them. What is computed again is rare, and
an outlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvsim.latency.calibrate import Floats, bounded_fit
from kvsim.latency.request_times import RequestRecord
from kvsim.latency.roofline import BatchLatency

# Tokens of one step reach the client one after another, within this share of a median gap.
_SAME_STEP = 0.1
# Without a token in as many steps a request was preempted; one late token is no sign of it.
_MISSED_STEPS = 2
# Residuals of more than this many medians count less: 1.5 standard deviations.
_HUBER = 2.2
_ROUNDS = 10
# Batches whose seconds are fitted, at most: the first and the last are a typical range of the run.
_BATCHES = 12
# Share of the tokens whose times have to be known: several may arrive at once.
_KNOWN = 0.95


def has_token_times(records: Sequence[RequestRecord]) -> bool:
    """Whether the times of most tokens are known."""
    known = sum(len(each.gaps_s) for each in records)
    return known > 0 and known >= _KNOWN * sum(each.output_tokens - 1 for each in records)


def fit_tokens(records: Sequence[RequestRecord], least: Floats) -> BatchLatency:
    """Fit the costs of a step except that of a pair, and the seconds of each batch.

    Without the times of tokens those of a request are taken to be even, and a preemption is part of
    the steps: then the result is but a first guess, without batches.

    Args:
        least: bounds of the costs.
    """
    timed = has_token_times(records)
    columns, seconds = (_per_burst if timed else _per_request)(records)
    if not len(seconds):
        return BatchLatency(*least.tolist())
    if timed and columns[:, 0].any():
        return _with_batches(columns, seconds, least)
    return BatchLatency(*_robust_fit(columns, seconds, least[:4]).tolist())


def _with_batches(columns: Floats, seconds: Floats, least: Floats) -> BatchLatency:
    """Fit the seconds of each batch in place of a fixed cost and one of a decode.

    Beyond the largest one a decode costs what a prompt token does: both are rows of the same
    products, which are most efficient with many.
    """
    running = columns[:, 2] / np.where(columns[:, 0] > 0, columns[:, 0], np.inf)
    knots = _frequent(running[running > 0])
    usual = running <= knots[-1] + 0.5
    steps, prompts, _, read = columns[usual].T
    running, seconds = running[usual], seconds[usual]
    hats = [steps * np.interp(running, knots, unit) for unit in np.eye(len(knots))]
    bounds = np.append(least[0] + least[2] * knots, least[[1, 3]])
    *found, prompt, slot = _robust_fit(np.stack([*hats, prompts, read], -1), seconds, bounds)
    # A line below all of them, and what is above it.
    decode = min(max(prompt, least[2]), float(((found - least[0]) / knots).min()))
    above = np.array(found) - decode * knots
    batches = zip(knots.tolist(), (above - above.min()).tolist(), strict=True)
    costs = (float(above.min()), float(prompt), float(decode), float(slot))
    return BatchLatency(*costs, batches=tuple(batches))


def _frequent(running: Floats) -> Floats:
    """Return the medians of parts of the steps that are equally large, each once."""
    parts = np.array_split(np.sort(running), _BATCHES)
    return np.unique([np.rint(np.median(part)) for part in parts if len(part)])


def _per_request(records: Sequence[RequestRecord]) -> tuple[Floats, Floats]:
    """Return steps, prompt tokens, decodes and slots read while each request decodes."""
    table = np.array([each[:5] for each in records], np.float64)
    prompt, output, _, first, last = table[table[:, 1] > 1].T
    seconds, steps = last - first, output - 1
    order = np.argsort(np.concatenate([first, last]), kind="stable")
    edges = np.concatenate([first, last])[order]

    def while_decoding(amount: Floats) -> Floats:
        rate = amount / seconds
        slope = np.cumsum(np.concatenate([rate, -rate])[order])
        sums = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(edges))])
        return np.asarray(np.interp(last, edges, sums) - np.interp(first, edges, sums))

    starts = np.argsort(table[:, 3])
    computed = np.array([each.computed_tokens for each in records], np.float64)
    sums = np.concatenate([[0.0], np.cumsum(computed[starts])])
    low, high = (np.searchsorted(table[starts, 3], each, "right") for each in (first, last))
    read = while_decoding(steps * (prompt + steps / 2))
    return np.stack([steps, sums[high] - sums[low], while_decoding(steps), read], -1), seconds


def _per_burst(records: Sequence[RequestRecord]) -> tuple[Floats, Floats]:
    """Return steps, prompt tokens, decodes and slots read of each burst, and its seconds."""
    gaps = [np.asarray(each.gaps_s, np.float64) for each in records]
    after = [np.concatenate([[0.0], np.cumsum(each)]) for each in gaps]
    times = np.concatenate([r.first_s + each for r, each in zip(records, after, strict=True)])
    written = [
        r.prompt_tokens + np.arange(len(each)) for r, each in zip(records, after, strict=True)
    ]
    context = np.concatenate(written).astype(np.float64)
    is_first, prompts = np.zeros(len(times), bool), np.zeros(len(times))
    firsts = np.cumsum([0, *map(len, after)])[:-1]
    is_first[firsts] = True
    prompts[firsts] = [each.computed_tokens for each in records]
    # The burst of tokens in which each token arrives.
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    begins = np.diff(ordered, prepend=-np.inf) > _SAME_STEP * float(np.median(np.concatenate(gaps)))
    burst = np.empty(len(times), np.int64)
    burst[order] = np.cumsum(begins) - 1
    ends = ordered[begins]

    def per_burst(values: Floats) -> Floats:
        return np.bincount(burst, values, len(ends)).astype(np.float64)

    preempted = ~is_first & (np.diff(burst, prepend=0) > 1 + _MISSED_STEPS)
    decodes = per_burst(~is_first * 1.0)
    # Requests that decode between two bursts: those with a next token, and not preempted.
    going_on = ~is_first & ~preempted
    change = np.bincount(burst[np.flatnonzero(going_on) - 1] + 1, minlength=len(ends) + 1)
    change -= np.bincount(burst[going_on] + 1, minlength=len(ends) + 1)
    running = np.cumsum(change)[: len(ends)]
    computed = per_burst(prompts)
    read = per_burst(np.where(is_first, 0.0, context))
    steps = decodes / np.maximum(running, 1)
    columns = np.stack([steps, computed, decodes, read], -1)[1:]
    used = running[1:] > 0
    return columns[used], np.diff(ends)[used]


def _robust_fit(columns: Floats, seconds: Floats, least: Floats) -> Floats:
    """Fit with less weight on outliers: other programs make some steps longer.

    Source: Huber, "Robust Estimation of a Location Parameter", 1964, by reweighting.
    """
    weights = np.ones(len(seconds))
    for _ in range(_ROUNDS):
        found = bounded_fit(columns * weights[:, None], seconds * weights, least)
        off = np.abs(seconds - columns @ found)
        usual = max(_HUBER * float(np.median(off)), 1e-12)
        weights = np.sqrt(usual / np.maximum(off, usual))
    return found
