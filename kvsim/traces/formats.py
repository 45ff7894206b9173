"""Formats of published traces: keys for detection, time unit, and meaning of the columns.

| name | rows | time | prompt blocks |
|---|---|---|---|
| plain | ``arrival,prompt_tokens,output_tokens``, CSV | s | - |
| plain-lengths | the same without ``arrival``, CSV | none | - |
| azure | Azure LLM inference 2023 and 2024, CSV | dates | - |
| burstgpt | BurstGPT, CSV of 6 or 8 columns | s | - |
| vidur | Vidur, CSV | s | - |
| mooncake | Mooncake (FAST'25), JSONL | ms | 512 |
| qwen-bailian | Alibaba's Qwen-Bailian, JSONL | s | 16 |
| timed-trace | input of ``vllm bench serve``, JSONL | declared | declared or detected |
| llmservingsim | LLMServingSim workloads, JSONL | ns | - |
| recorded-run | requests recorded by a benchmark, JSONL | s | - |
| vllm-bench | ``vllm bench serve --save-detailed``, one JSON object of lists | s | - |
| sharegpt | ShareGPT, one JSON list of conversations | none | - |
| prompts | JSONL, ``{"prompt": ...}`` | none | - |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from kvsim.traces.parse import (
    BadRowError,
    Raw,
    date_time,
    has_fraction,
    hash_ids,
    scaled_time,
    tokens,
)

Row = Mapping[str, Any]
Turns = Literal["first", "all"]
_OUTPUT_KEYS = ("output_tokens", "max_new_tokens", "max_tokens")


@dataclass(slots=True)
class ParseContext:
    """Context of the row parsers, and counts of unused parts.

    Attributes:
        unit: of times, one of :data:`kvsim.traces.parse.UNITS`, ``date``, or None.
        block_size: tokens in a block of ``hash_ids``.
        count_tokens: tokenizer for formats with texts; returns a number of tokens.
        output_tokens: default output length of prompts.
        turns: of a ShareGPT conversation: ``first`` uses its first two turns, as vLLM's
            benchmark does; ``all`` makes a request of every answer, all earlier turns being its
            prompt.
        fractions: whether a time in ms, us or ns had a fraction.
    """

    unit: str | None = None
    block_size: int | None = None
    count_tokens: Callable[[str], int] | None = None
    output_tokens: int | None = None
    turns: Turns = "first"
    fractions: bool = False
    ignored: Counter[str] = field(default_factory=Counter)

    def time(self, value: object) -> int:
        """Convert a time in ``unit`` to nanoseconds.

        Raises:
            BadRowError: it is missing or not a number or date.
        """
        assert self.unit is not None
        if self.unit == "date" and isinstance(value, str):
            return date_time(value)
        found = scaled_time(value, self.unit)
        self.fractions = self.fractions or (self.unit != "s" and has_fraction(value))
        return found


Parser = Callable[[Row, ParseContext], Iterator[Raw]]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One trace format.

    Attributes:
        container: ``csv`` with a header, ``jsonl``, ``json``: one list, or ``columns``: one object
            with a list for each key.
        keys: required columns or keys; used for detection.
        clock: the key among ``keys`` that holds times; None: no clock.
        unit: of its times; None: no clock, or (``declare_unit``) it must be declared.
        optional: columns or keys that are read if present.
    """

    name: str
    container: Literal["csv", "jsonl", "json", "columns"]
    keys: tuple[str, ...]
    parse: Parser
    clock: str | None = None
    unit: str | None = None
    block_size: int | None = None
    declare_unit: bool = False
    texts: bool = False
    optional: tuple[str, ...] = ()


def _columns(clock: str | None, prompt: str, output: str) -> Parser:
    """Return a parser of rows with a request's time and lengths in these columns."""

    def parse(row: Row, context: ParseContext) -> Iterator[Raw]:
        if "sub_requests" in row:  # of LLMServingSim
            raise BadRowError("sub_requests_not_supported")
        yield Raw(
            context.time(row.get(clock)) if clock else None,
            tokens(row.get(prompt), "prompt"),
            tokens(row.get(output), "output"),
        )

    return parse


def _hashed(row: Row, context: ParseContext) -> Iterator[Raw]:
    prompt = tokens(row.get("input_length"), "prompt")
    ids = hash_ids(row.get("hash_ids"))
    if ids is not None and context.block_size:
        full, rest = divmod(prompt, context.block_size)
        if len(ids) not in (full, full + bool(rest)):
            raise BadRowError("hash_ids_not_of_that_length", f"{len(ids)} for {prompt}")
    yield Raw(
        context.time(row.get("timestamp")),
        prompt,
        tokens(row.get("output_length"), "output"),
        ids,
    )


def _bailian(row: Row, context: ParseContext) -> Iterator[Raw]:
    """Parse a row whose hash ids are per block, and chain them over the prefix."""
    for raw in _hashed(row, context):
        yield raw if raw.hash_ids is None else raw._replace(hash_ids=_chained(raw.hash_ids))


def _chained(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return 64-bit ids that are equal if all ids up to there are equal."""
    return tuple(accumulate(ids, lambda prefix, each: hash((prefix, each)), initial=0))[1:]


def _sharegpt(row: Row, context: ParseContext) -> Iterator[Raw]:
    conversation = row.get("conversations")
    if not isinstance(conversation, list):
        raise BadRowError("conversations_missing")
    if len(conversation) < 2:
        raise BadRowError("too_few_turns", len(conversation))
    counts = [_text_tokens(turn, "value", context) for turn in conversation]
    if context.turns == "first":
        context.ignored["later_turns"] += len(counts) - 2
        yield Raw(None, tokens(counts[0], "prompt"), tokens(counts[1], "output"))
        return
    before, answers = 0, 0
    for message, count in zip(conversation, counts, strict=True):
        if message.get("from") in ("gpt", "chatgpt", "assistant", "bing", "bard"):
            answers += 1
            yield Raw(None, tokens(before, "prompt"), tokens(count, "output"))
        before += count
    if not answers:
        raise BadRowError("too_few_turns", len(conversation))


def _prompts(row: Row, context: ParseContext) -> Iterator[Raw]:
    prompt = _text_tokens(row, "prompt", context)
    given = next((row[key] for key in _OUTPUT_KEYS if row.get(key) is not None), None)
    output = context.output_tokens if given is None else given
    if output is None:
        raise BadRowError("output_tokens_needed")
    yield Raw(None, tokens(prompt, "prompt"), tokens(output, "output"))


def _text_tokens(mapping: object, key: str, context: ParseContext) -> int:
    text = mapping.get(key) if isinstance(mapping, Mapping) else None
    if not isinstance(text, str):
        raise BadRowError("text_missing", key)
    assert context.count_tokens is not None
    return context.count_tokens(text)


_PLAIN = ("prompt_tokens", "output_tokens")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_VIDUR = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
_TOKENISED = ("input_toks", "output_toks")
_LENGTHS = ("timestamp", "input_length", "output_length")
_BURST = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
# Lists of a benchmark's result, one element for each request; ``itls`` has lists.
BENCH_KEYS = ("input_lens", "output_lens", "start_times", "ttfts", "itls")
FORMATS = {
    each.name: each
    for each in (
        TraceFormat(
            "plain", "csv", ("arrival", *_PLAIN), _columns("arrival", *_PLAIN), "arrival", "s"
        ),
        TraceFormat("plain-lengths", "csv", _PLAIN, _columns(None, *_PLAIN)),
        TraceFormat("azure", "csv", _AZURE, _columns(*_AZURE), "TIMESTAMP", "date"),
        TraceFormat(
            "burstgpt", "csv", _BURST, _columns("Timestamp", "Request tokens", "Response tokens"),
            "Timestamp", "s",
        ),
        TraceFormat("vidur", "csv", _VIDUR, _columns(*_VIDUR), "arrived_at", "s"),
        TraceFormat(
            "qwen-bailian", "jsonl", (*_LENGTHS, "chat_id", "turn"), _bailian, "timestamp", "s",
            16, optional=("hash_ids",),
        ),
        TraceFormat(
            "mooncake", "jsonl", _LENGTHS, _hashed, "timestamp", "ms", 512,
            optional=("hash_ids",),
        ),
        TraceFormat(
            "timed-trace", "jsonl", _LENGTHS, _hashed, "timestamp", declare_unit=True,
            optional=("hash_ids",),
        ),
        TraceFormat(
            "llmservingsim", "jsonl", (*_TOKENISED, "arrival_time_ns"),
            _columns("arrival_time_ns", *_TOKENISED), "arrival_time_ns", "ns",
        ),
        TraceFormat(
            "recorded-run", "jsonl", (*_TOKENISED, "arrival_time"),
            _columns("arrival_time", *_TOKENISED), "arrival_time", "s",
        ),
        TraceFormat(
            "vllm-bench", "columns", BENCH_KEYS,
            _columns("start_times", "input_lens", "output_lens"), "start_times", "s",
        ),
        TraceFormat("prompts", "jsonl", ("prompt",), _prompts, texts=True, optional=_OUTPUT_KEYS),
        TraceFormat(
            "sharegpt", "json", ("conversations",), _sharegpt, texts=True
        ),
    )
}  # fmt: skip
