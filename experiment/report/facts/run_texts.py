"""Sentences on a run's tokens, sampling, sharing and external engines, for console and page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiment.analysis.conclusions import sampling_figures
from experiment.analysis.results import EngineResult, Margin, Results, TokenComparison
from experiment.config.arms import ARMS
from experiment.events.sampling import SamplingConfig
from experiment.report.facts.texts import Words
from experiment.report.facts.values import written
from experiment.text import DASH, format_bytes
from experiment.text.messages import Message, arm_message, message


def arm_words(arm: str) -> Words:
    """Name of an arm as part of a message; others than ours keep their own."""
    return arm_message(arm) if arm in ARMS else arm


def token_sentences(results: Results) -> list[tuple[Message, bool | None]]:
    """Whether the arms generated the same tokens; with each sentence, whether it is good news."""
    compared, others = results.compared, results.not_compared
    if not results.tokens:
        return [(message("report.tokens.none"), None)] if len(results.arms) > 1 else []
    found: list[tuple[Message, bool | None]] = []
    if compared and all(one.equal for one in compared):
        key = "report.tokens.equal_some" if others else "report.tokens.equal"
        found.append((message(key, n=len(compared) + 1), True))
    for one in compared:
        found += () if one.equal else _difference(one)
    return found + [
        (message("report.tokens.not_compared", arm=arm_words(one.arm), reason=one.reason), None)
        for one in others
    ]


def _difference(one: TokenComparison) -> Iterator[tuple[Message, bool | None]]:
    arms = {"arm": arm_words(one.arm), "reference": arm_words(one.reference)}
    counts = {"equal": one.equal_requests, "n": one.requests}
    is_good = False if one.same_cache else None
    yield message("report.tokens.differ", **arms, **counts), is_good
    if one.first_difference is not None:
        request, index = one.first_difference
        yield message("report.tokens.first", request=request, index=index + 1), is_good
    if one.margin is not None:
        yield margin_text(one.margin), None
    if not one.same_cache:
        yield message("report.tokens.other_cache", share=one.equal_token_share), None


def margin_text(margin: Margin) -> Message:
    """Margin of the logits where tokens differ."""
    places, ulps = [index + 1 for _, index in margin.places], margin.ulps
    text = message(
        "console.tokens_margin",
        margin=margin.margin,
        dtype=margin.dtype,
        expected=margin.tokens[0],
        expected_logit=margin.logits[0],
        found=margin.tokens[1],
        found_logit=margin.logits[1],
    )
    if ulps:
        others = {"n": len(places), "first": min(places), "last": max(places),
                  "least": min(ulps), "most": max(ulps)}  # fmt: skip
        text = message("console.tokens_margins", said=text.model_dump(), **others)
    if margin.dtype == "float32":
        return text
    return message("console.tokens_half", said=text.model_dump(), dtype=margin.dtype)


def sampling_message(sampling: SamplingConfig) -> Message:
    """How arms choose tokens."""
    how = message("sampling.greedy")
    if sampling.beam_width > 1:
        how = message("sampling.beams", width=sampling.beam_width)
    if not sampling.greedy:
        how = message("sampling.random", **sampling_figures(sampling))
    summary = message("sampling.summary", how=how, n=sampling.n)
    if not sampling.stop_token_ids:
        return summary
    stops = ", ".join(map(str, sampling.stop_token_ids))
    first = sampling.min_new_tokens + 1
    return message("sampling.stops", summary=summary, stops=stops, first=first)


def explanations(results: Results) -> dict[str, list[Message]]:
    """Observations of this run for each part of ``explain``, by arm."""
    copies, hits = list[Message](), list[Message]()
    for arm in results.arms:
        name, cache = arm_words(arm.arm), arm.prefix_cache
        if arm.shared_peak or arm.copied_blocks:
            figures = {"shared": arm.shared_peak, "copied": arm.copied_blocks}
            copies.append(message("explain.cow.on", arm=name, **figures))
        if cache:
            figures = {"queried": cache["queried"], "hits": cache["hit_cross"] + cache["hit_batch"]}
            hits.append(message("explain.prefix.on", arm=name, **figures))
    return {
        "paging": [],
        "cow": copies or [message("explain.cow.off")],
        "prefix": hits or [message("explain.prefix.off")],
    }


class Fact(NamedTuple):
    """A label, a value, and a note: the prediction, or the parts of the value."""

    label: Message
    value: str
    note: Message | None = None


def engine_facts(engine: EngineResult) -> Iterator[Fact]:
    """All figures reported by an external engine, with their notes."""
    pool = None if engine.block_bytes is None else engine.blocks * engine.block_bytes
    parts = message("console.engine_blocks", blocks=engine.blocks, block=engine.block_bytes)
    yield Fact(message("console.engine_pool"), format_bytes(pool), parts)
    ranks = " + ".join(map(format_bytes, engine.rank_bytes))
    yield Fact(message("console.engine_ranks"), ranks)
    yield Fact(
        message("console.engine_capacity"),
        written(engine.tokens, "count"),
        message("console.engine_foretold", value=written(engine.foretold_tokens, "count")),
    )
    yield Fact(
        message("console.engine_concurrency", length=engine.max_length),
        _ratio(engine.max_concurrency),
        message("console.engine_foretold", value=_ratio(engine.foretold_concurrency)),
    )
    hits = f"{engine.preempted:,}; {engine.prefix_hits:,} / {engine.prefix_queries:,}"
    yield Fact(message("console.engine_preempted"), hits)
    seconds = (
        engine.load_s, engine.compile_s, engine.cache_s, engine.capture_s, engine.first_request_s,
    )  # fmt: skip
    yield Fact(message("console.engine_times"), " + ".join(f"{s:.2f} s" for s in seconds))
    versions = ", ".join(f"{name} {number}" for name, number in engine.versions.items())
    yield Fact(message("console.engine_versions"), versions)


def _ratio(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}×"
