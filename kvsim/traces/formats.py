"""Formats of published traces: how each is recognised, its unit, and what its columns mean.

| name | rows | time | prompt blocks |
|---|---|---|---|
| azure | Azure LLM inference 2023 and 2024, CSV | dates | - |
| burstgpt | BurstGPT, CSV of 6 or 8 columns | s | - |
| vidur | Vidur, CSV | s | - |
| mooncake | Mooncake (FAST'25), JSONL | ms | 512 |
| qwen-bailian | Alibaba's Qwen-Bailian, JSONL | s | 16 |
| timed-trace | what ``vllm bench serve`` replays, JSONL | declared | declared or detected |
| llmservingsim | LLMServingSim workloads, JSONL | ns | - |
| recorded-run | requests of a run that its benchmark recorded, JSONL | s | - |
| sharegpt | ShareGPT, one JSON list of conversations | none | - |
| prompts | JSONL, ``{"prompt": ...}`` | none | - |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvsim.traces.parse import BadRowError, Raw, date_time, hash_ids, name_of, scaled_time, tokens

Row = Mapping[str, Any]
Turns = Literal["first", "all"]
_OUTPUT_KEYS = ("output_tokens", "max_new_tokens", "max_tokens")


@dataclass(slots=True)
class Reading:
    """What the parsers of rows need to know, and what they leave unused.

    Attributes:
        unit: of times, one of :data:`kvsim.traces.parse.UNITS`, ``date``, or None.
        block_size: tokens in a block of ``hash_ids``.
        count_tokens: number of tokens of a text; formats of texts need it.
        output_tokens: for prompts whose row names no output length.
        turns: of a ShareGPT conversation: ``first`` takes its first two turns as vLLM's
            benchmark does, ``all`` makes a request of every answer, after all that came before.
    """

    unit: str | None = None
    block_size: int | None = None
    count_tokens: Callable[[str], int] | None = None
    output_tokens: int | None = None
    turns: Turns = "first"
    ignored: Counter[str] = field(default_factory=Counter)


Parser = Callable[[Row, Reading], Iterator[Raw]]


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        container: ``csv`` with a header, ``jsonl``, or ``json``: one list.
        keys: columns or keys that a row must have to be recognised.
        unit: of its times; None: no clock, or (``declare_unit``) it must be declared.
    """

    name: str
    container: Literal["csv", "jsonl", "json"]
    keys: tuple[str, ...]
    parse: Parser
    unit: str | None = None
    block_size: int | None = None
    declare_unit: bool = False
    texts: bool = False


def _azure(row: Row, _: Reading) -> Iterator[Raw]:
    yield Raw(
        date_time(row["TIMESTAMP"]),
        tokens(row["ContextTokens"], "prompt"),
        tokens(row["GeneratedTokens"], "output"),
    )


def _burstgpt(row: Row, reading: Reading) -> Iterator[Raw]:
    yield Raw(
        scaled_time(row["Timestamp"], reading.unit or "s"),
        tokens(row["Request tokens"], "prompt"),
        tokens(row["Response tokens"], "output"),
        chat=name_of(row, "Session ID"),
    )


def _vidur(row: Row, reading: Reading) -> Iterator[Raw]:
    yield Raw(
        scaled_time(row["arrived_at"], reading.unit or "s"),
        tokens(row["num_prefill_tokens"], "prompt"),
        tokens(row["num_decode_tokens"], "output"),
    )


def _hashed(row: Row, reading: Reading) -> Iterator[Raw]:
    assert reading.unit is not None
    prompt = tokens(row.get("input_length"), "prompt")
    ids = hash_ids(row.get("hash_ids"))
    if ids is not None and reading.block_size:
        full, rest = divmod(prompt, reading.block_size)
        if len(ids) not in (full, full + bool(rest)):
            raise BadRowError("hash_ids_not_of_that_length", f"{len(ids)} for {prompt}")
    yield Raw(
        scaled_time(row.get("timestamp"), reading.unit),
        prompt,
        tokens(row.get("output_length"), "output"),
        ids,
        name_of(row, "chat_id"),
        name_of(row, "parent_chat_id"),
        _turn(row.get("turn")),
    )


def _llmservingsim(row: Row, reading: Reading) -> Iterator[Raw]:
    return _tokenised(row, "arrival_time_ns", reading.unit or "ns")


def _recorded_run(row: Row, reading: Reading) -> Iterator[Raw]:
    return _tokenised(row, "arrival_time", reading.unit or "s")


def _tokenised(row: Row, clock: str, unit: str) -> Iterator[Raw]:
    if "sub_requests" in row:
        raise BadRowError("sub_requests_not_supported")
    yield Raw(
        scaled_time(row.get(clock), unit),
        tokens(row.get("input_toks"), "prompt"),
        tokens(row.get("output_toks"), "output"),
    )


def _sharegpt(row: Row, reading: Reading) -> Iterator[Raw]:
    conversation = row.get("conversations")
    if not isinstance(conversation, list):
        raise BadRowError("conversations_missing")
    if len(conversation) < 2:
        raise BadRowError("too_few_turns", len(conversation))
    counts = [_text_tokens(turn, "value", reading) for turn in conversation]
    chat = name_of(row, "id")
    if reading.turns == "first":
        reading.ignored["later_turns"] += len(counts) - 2
        yield Raw(None, tokens(counts[0], "prompt"), tokens(counts[1], "output"), chat=chat)
        return
    before, turn = 0, 0
    for message, count in zip(conversation, counts, strict=True):
        if message.get("from") in ("gpt", "chatgpt", "assistant", "bing", "bard"):
            turn += 1
            yield Raw(None, tokens(before, "prompt"), tokens(count, "output"), chat=chat, turn=turn)
        before += count
    if not turn:
        raise BadRowError("too_few_turns", len(conversation))


def _prompts(row: Row, reading: Reading) -> Iterator[Raw]:
    prompt = _text_tokens(row, "prompt", reading)
    given = next((row[key] for key in _OUTPUT_KEYS if row.get(key) is not None), None)
    output = reading.output_tokens if given is None else given
    yield Raw(None, tokens(prompt, "prompt"), tokens(output, "output"))


def _text_tokens(holder: object, key: str, reading: Reading) -> int:
    text = holder.get(key) if isinstance(holder, Mapping) else None
    if not isinstance(text, str):
        raise BadRowError("text_missing", key)
    assert reading.count_tokens is not None
    return reading.count_tokens(text)


def _turn(value: object) -> int | None:
    return value if type(value) is int else None


_TOKENISED = ("input_toks", "output_toks")
_LENGTHS = ("timestamp", "input_length", "output_length")
_BURST = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
FORMATS = {
    each.name: each
    for each in (
        Format("azure", "csv", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure, "date"),
        Format("burstgpt", "csv", _BURST, _burstgpt, "s"),
        Format(
            "vidur", "csv", ("arrived_at", "num_prefill_tokens", "num_decode_tokens"), _vidur, "s"
        ),
        Format("qwen-bailian", "jsonl", (*_LENGTHS, "chat_id", "turn"), _hashed, "s", 16),
        Format("mooncake", "jsonl", _LENGTHS, _hashed, "ms", 512),
        Format("timed-trace", "jsonl", _LENGTHS, _hashed, declare_unit=True),
        Format("llmservingsim", "jsonl", (*_TOKENISED, "arrival_time_ns"), _llmservingsim, "ns"),
        Format("recorded-run", "jsonl", (*_TOKENISED, "arrival_time"), _recorded_run, "s"),
        Format("prompts", "jsonl", ("prompt",), _prompts, texts=True),
        Format("sharegpt", "json", ("conversations",), _sharegpt, texts=True),
    )
}
