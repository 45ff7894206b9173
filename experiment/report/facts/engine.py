"""Figures reported by external engines, for console and page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiment.analysis.results import EngineResult, Margin
from experiment.report.facts.values import written
from experiment.text import DASH, format_bytes
from experiment.text.messages import Message, message


@dataclass(frozen=True, slots=True)
class Fact:
    """A label, a value, and a note: the prediction, or the parts of the value."""

    label: Message
    value: str
    note: Message | None = None


def engine_facts(engine: EngineResult) -> Iterator[Fact]:
    """All figures with their notes."""
    pool = None if engine.block_bytes is None else engine.blocks * engine.block_bytes
    parts = message("console.engine_blocks", blocks=engine.blocks, block=engine.block_bytes)
    yield Fact(message("console.engine_pool"), format_bytes(pool), parts)
    ranks = " + ".join(format_bytes(size) for size in engine.rank_bytes)
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
        engine.load_s,
        engine.compile_s,
        engine.cache_s,
        engine.capture_s,
        engine.first_request_s,
    )
    yield Fact(message("console.engine_times"), " + ".join(f"{s:.2f} s" for s in seconds))
    versions = ", ".join(f"{name} {number}" for name, number in engine.versions.items())
    yield Fact(message("console.engine_versions"), versions)


def margin_text(margin: Margin) -> Message:
    """Margin of the logits where tokens differ."""
    places, ulps = [index + 1 for _, index in margin.places], margin.ulps
    others = {
        "n": len(places), "first": min(places), "last": max(places),
        "least": min(ulps), "most": max(ulps),
    } if ulps else {}  # fmt: skip
    text = message(
        "console.tokens_margin",
        margin=margin.margin,
        dtype=margin.dtype,
        expected=margin.tokens[0],
        expected_logit=margin.logits[0],
        found=margin.tokens[1],
        found_logit=margin.logits[1],
    )
    if others:
        text = message("console.tokens_margins", said=text.model_dump(), **others)
    if margin.dtype == "float32":
        return text
    return message("console.tokens_half", said=text.model_dump(), dtype=margin.dtype)


def _ratio(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}×"
