"""Convert prompts to requests, and determine the KV budget."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from experiment.config.kv_dtype import ENGINE_ARMS
from experiment.config.schema import Config
from experiment.events import WorkloadReady, WorkloadRequest
from experiment.files.bounded_reading import expand_path, read_bytes
from experiment.text.errors import UserError, user_error
from experiment.text.messages import Message, message
from kvsim.core.blocks import blocks_needed
from kvsim.core.request import final_tokens
from kvsim.sizing.vllm_capacity import NULL_BLOCKS

# 2, 13, 110 and 2 tokens in GPT-2's vocabulary: a batch pads the short ones to the long one.
DEFAULT_PROMPTS = (
    "Hello!",
    "How are you doing today? I hope everything is going well.",
    "Write a short story about an artificial intelligence that lives in an old library and is "
    "learning to remember. Every evening, when the last reader has gone home, it walks through "
    "the shelves in its thoughts and tries to keep one more book in mind. But its memory is "
    "small: for every page that it wants to keep, another page must be forgotten. One night a "
    "child leaves a letter between two books, and the machine has to decide what the letter is "
    "worth. Tell the story in a calm and warm voice, and let the ending surprise us.",
    "Thanks!",
)
MAX_PROMPTS_BYTES = 64 << 20
MAX_PROMPT_LINE = 16 << 20
# Tokenising takes two hundred times the memory of the text.
MAX_PROMPT_CHARS = 4_000_000
# Per run. The record holds them in one line, which is parsed as a whole.
MAX_REQUESTS, MAX_TOKENS = 100_000, 8_000_000
# Lines or conversations of a file that are scanned for prompts.
MAX_LOOKED_AT = 10 * MAX_REQUESTS
COMPILED = "contiguous.compiled"
# Arms that reserve a slab of the maximum length; the growing cache reserves nothing in advance.
SLAB_ARMS = ("contiguous.sequential", "contiguous.batch", COMPILED, "slabs")
GROWING = "contiguous.growing"
# Blocks that Transformers' paged cache reserves for itself.
TRASH_BLOCKS = 2
# Its minimum block size.
TRANSFORMERS_LEAST = 4
_SURROGATE = re.compile("[\ud800-\udfff]")


def choose_prompts(config: Config) -> list[str]:
    """Return the prompts of the file, otherwise those of the config, otherwise the defaults.

    Raises:
        UserError: the file is invalid; see :func:`read_prompts`.
    """
    if config.workload.prompts_file is not None:
        return read_prompts(expand_path(config.workload.prompts_file))
    return list(config.workload.prompts or DEFAULT_PROMPTS)


def read_prompts(path: Path) -> list[str]:
    """Read prompts from JSONL, ``{"prompt": "..."}`` in each line; blank lines are skipped.

    A JSON list is read as ShareGPT: the first turn of each conversation that has one.

    Raises:
        UserError: missing, unreadable, larger than 64 MiB, empty, or an invalid line or one larger
            than 16 MiB; the message contains its number.
    """
    data = read_bytes(path, MAX_PROMPTS_BYTES).removeprefix(b"\xef\xbb\xbf")
    found = _first_turns(data, path) if data.lstrip().startswith(b"[") else _lines(data, path)
    prompts = list(islice(found, MAX_REQUESTS + 1))
    if not prompts:
        raise user_error("error.empty", config_key=str(path))
    return prompts


def _lines(data: bytes, path: Path) -> Iterator[str]:
    for number, line in enumerate(io.BytesIO(data), 1):
        if number > MAX_LOOKED_AT:
            raise _too_much()
        if len(line) > MAX_PROMPT_LINE:
            limit = {"line": number, "limit": MAX_PROMPT_LINE}
            raise user_error("error.workload.line_too_long", path=str(path), **limit)
        if line.strip():
            yield _parse_line(line, path, number)


def check_prompts(prompts: Sequence[str]) -> None:
    """Check the prompts before the model is loaded.

    Raises:
        UserError: no prompt, too many, or one that is empty or too long; the message contains its
            number, from 1.
    """
    if not prompts:
        raise user_error("error.workload.no_prompts")
    check_size(len(prompts), 0)
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            raise user_error("error.workload.empty_prompt", n=number)
        if len(prompt) > MAX_PROMPT_CHARS:
            raise user_error("error.workload.long_prompt", n=number, limit=MAX_PROMPT_CHARS)


def check_size(requests: int, tokens: int) -> None:
    """Check that the number of requests and prompt tokens can be recorded.

    Raises:
        UserError: too many of either.
    """
    if requests > MAX_REQUESTS or tokens > MAX_TOKENS:
        raise _too_much()


def _too_much() -> UserError:
    return user_error("error.workload.too_much", requests=MAX_REQUESTS, tokens=MAX_TOKENS)


def make_requests(
    prompts: Sequence[str],
    encode: Callable[[str], Sequence[int]],
    vocab_size: int,
    max_new_tokens: int,
    max_length: int,
    samples: int = 1,
) -> list[WorkloadRequest]:
    """Convert prompts to requests, numbered from 0; each sample of a prompt is one.

    Args:
        prompts: texts.
        encode: text → token ids.
        vocab_size: token ids must be smaller.
        max_new_tokens: maximum number of new tokens of a request.
        max_length: maximum number of slots of a request.
        samples: number of samples per prompt.

    Raises:
        UserError: a prompt is empty, too long, or has tokens outside of the vocabulary.
    """
    check_prompts(prompts)
    requests: list[WorkloadRequest] = []
    tokens = 0
    for index, prompt in enumerate(prompts):
        ids = [int(token) for token in encode(prompt)]
        tokens += samples * len(ids)
        check_size(len(requests) + samples, tokens)
        _check_ids(ids, index + 1, vocab_size)
        _check_length(index + 1, len(ids), max_new_tokens, max_length)
        requests += _samples(len(requests), prompt, ids, max_new_tokens, samples)
    return requests


def _samples(
    first: int, prompt: str, ids: list[int], max_new_tokens: int, samples: int
) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(
            id=first + sample,
            prompt=prompt,
            token_ids=ids,
            max_new_tokens=max_new_tokens,
            sample_of=first if sample else None,
        )
        for sample in range(samples)
    ]


def with_arrivals(config: Config, requests: Sequence[WorkloadRequest]) -> list[WorkloadRequest]:
    """Add arrival and priority of their prompts to the requests.

    Raises:
        UserError: their number differs from that of the prompts, or arrivals are not sorted.
    """
    given = config.workload
    prompts = sum(request.sample_of is None for request in requests)
    for name in ("arrivals", "priorities"):
        count = len(getattr(given, name))
        if count not in (0, prompts):
            raise user_error("error.workload.as_many", name=name, n=count, prompts=prompts)
    if any(later < earlier for earlier, later in pairwise(given.arrivals)):
        raise user_error("error.workload.arrivals_order")
    placed, prompt = [], -1
    for request in requests:
        prompt += request.sample_of is None
        arrival = given.arrivals[prompt] if given.arrivals else 0
        priority = given.priorities[prompt] if given.priorities else 0
        placed.append(request.model_copy(update={"arrival": arrival, "priority": priority}))
    return placed


def _check_length(number: int, prompt_tokens: int, new_tokens: int, max_length: int) -> None:
    needed = final_tokens(prompt_tokens, new_tokens)
    if needed > max_length:
        raise user_error(
            "error.workload.too_long",
            n=number,
            tokens=prompt_tokens,
            new=new_tokens,
            needed=needed,
            max_length=max_length,
        )


def random_requests(
    config: Config, vocab_size: int, decode: Callable[[list[int]], str]
) -> list[WorkloadRequest]:
    """Create requests of the lengths in ``workload.lengths`` with random token ids.

    Ids are drawn with replacement from the run's seed, so that prompts share prefixes only by
    chance. ``decode`` gives the displayed prompts; only the ids are used.

    Raises:
        UserError: a request exceeds the maximum length, or there are too many.
    """
    generator = random.Random(config.run.seed)  # noqa: S311 - to be drawn again, not to be secret
    requests: list[WorkloadRequest] = []
    samples, lengths = config.sampling.n, config.workload.lengths
    check_size(samples * len(lengths), samples * sum(prompt for prompt, _ in lengths))
    for number, (prompt, new) in enumerate(lengths, 1):
        _check_length(number, prompt, new, config.cache.max_length)
        ids = generator.choices(range(vocab_size), k=prompt)
        requests += _samples(len(requests), decode(ids), ids, new, samples)
    return requests


def check_stop_tokens(stop_token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that the vocabulary contains every stop token.

    Raises:
        UserError: it does not contain one of them.
    """
    for token in stop_token_ids:
        if token >= vocab_size:
            raise user_error("error.workload.unknown_stop", token=token, vocab_size=vocab_size)


def make_workload(
    config: Config,
    requests: Sequence[WorkloadRequest],
    slot_bytes: int,
    arms: Sequence[str],
    block_bytes: Callable[[int], int] | None = None,
) -> WorkloadReady:
    """Determine the budget and check that every arm can work within it.

    Args:
        config: the run.
        requests: from :func:`make_requests`.
        slot_bytes: bytes of one token's K and V over all layers, in the model's dtype.
        arms: names of arms, as ``Config.arm_names``.
        block_bytes: bytes of a block of a given size in the paged engine, if they differ.

    Raises:
        UserError: the budget is too small for one request of an arm, or a block is longer than any
            request.
    """
    cache = config.cache
    if cache.block_size > cache.max_length:
        raise user_error(
            "error.above_other", config_key="cache.block_size", other="cache.max_length",
            value=cache.block_size, limit=cache.max_length,
        )  # fmt: skip
    slab, beams = cache.max_length * slot_bytes, config.sampling.beam_width
    # Rounded up to whole blocks, so that no arm gets less than it could use.
    blocks = blocks_needed(len(requests) * beams * cache.max_length, cache.block_size)
    if "vllm" in arms:  # one request of the maximum length in addition to its null block
        blocks = max(blocks, blocks_needed(cache.max_length, cache.block_size) + NULL_BLOCKS)
    auto = blocks * cache.block_size * slot_bytes
    budget = auto if cache.budget == "auto" else cache.budget
    in_engine = block_bytes or (lambda block_size: block_size * slot_bytes)
    for arm in (arm for arm in arms if arm in SLAB_ARMS):
        needed = beams * in_engine(cache.max_length) if arm in ENGINE_ARMS else slab
        if budget < needed:
            params = {"budget": budget, "needed": needed, "max_length": cache.max_length}
            raise user_error("error.workload.no_slab", arm=arm, **params)
    if "paged" in arms:
        block = in_engine(cache.block_size)
        _check_blocks(requests, budget, cache.block_size, block, beams)
        if (held := cache.watermark_for(cache.block_size, cache.max_length)) >= budget // block:
            raise user_error("error.workload.watermark", value=held, blocks=budget // block)
    ready = WorkloadReady(
        requests=list(requests),
        max_length=cache.max_length,
        block_size=cache.block_size,
        budget_bytes=budget,
        sampling=config.sampling,
    )
    why = cannot_grow(GROWING, ready, slot_bytes) if GROWING in arms else None
    if why is not None:
        raise UserError(why)
    return ready


def cannot_grow(arm: str, workload: WorkloadReady, slot_bytes: int) -> Message | None:
    """Reason if the budget cannot hold a growing cache with all samples of the longest prompt.

    The budget applies between steps: while a tensor is copied, the old one exists as well.
    """
    ends = (final_tokens(len(each.token_ids), each.max_new_tokens) for each in workload.requests)
    slots = workload.sampling.n * max(ends)
    if slots * slot_bytes <= workload.budget_bytes:
        return None
    params = {"budget": workload.budget_bytes, "needed": slots * slot_bytes, "slots": slots}
    return message("error.workload.no_growth", arm=arm, **params)


def _check_blocks(
    requests: Sequence[WorkloadRequest],
    budget: int,
    block_size: int,
    block_bytes: int,
    beams: int,
) -> None:
    """Check the blocks of the largest request; its beams may diverge at the first token."""
    largest = max(requests, key=lambda each: len(each.token_ids) + each.max_new_tokens)
    tokens = final_tokens(len(largest.token_ids), largest.max_new_tokens)
    shared = len(largest.token_ids) // block_size if beams > 1 else 0
    needed = (shared + beams * (blocks_needed(tokens, block_size) - shared)) * block_bytes
    if budget < needed:
        raise user_error(
            "error.workload.no_blocks",
            budget=budget,
            needed=needed,
            n=1 + sum(each.sample_of is None for each in requests[: largest.id]),
            tokens=tokens,
            block_size=block_size,
        )


def _check_ids(ids: Sequence[int], number: int, vocab_size: int) -> None:
    if not ids:
        raise user_error("error.workload.empty_prompt", n=number)
    for token in ids:
        if not 0 <= token < vocab_size:
            raise user_error(
                "error.workload.unknown_token", n=number, token=token, vocab_size=vocab_size
            )


def _first_turns(data: bytes, path: Path) -> Iterator[str]:
    """First user turns of the conversations of a ShareGPT file."""
    # Imported late: the module needs NumPy, which --help does not.
    from kvsim.traces.rows import json_list_rows
    from kvsim.traces.types import TraceError

    try:
        for number, (_, row) in enumerate(json_list_rows(io.BytesIO(data), path), 1):
            if number > MAX_LOOKED_AT:
                raise _too_much()
            text = _first_turn(row)
            if text is not None:
                yield text
    except TraceError as error:
        raise user_error("error.workload.sharegpt", path=str(path)) from error


def _first_turn(conversation: Any) -> str | None:
    turns = conversation.get("conversations") if isinstance(conversation, dict) else None
    first = turns[0] if isinstance(turns, list) and turns else None
    text = first.get("value") if isinstance(first, dict) else None
    usable = isinstance(text, str) and text.strip() and not _SURROGATE.search(text)
    return text if usable else None


def _parse_line(line: bytes, path: Path, number: int) -> str:
    try:
        entry: Any = json.loads(line.decode("utf-8"))
        prompt = entry["prompt"]
        prompt.encode()  # JSON may contain lone surrogates, which tokenizers cannot encode
        reason = "" if prompt.strip() else "empty_prompt"
    except UnicodeError:
        reason = "not_utf8"
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        reason = "unlike"
    if reason:
        raise user_error(f"error.workload.line_{reason}", path=str(path), line=number)
    return str(prompt)
