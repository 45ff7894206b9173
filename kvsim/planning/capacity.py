"""Requests of one length that a KV cache holds, for a range of its size.

    bytes of the cache        least        expected      most        of one rank
      ÷ bytes of a block      blocks, one of them the null block
      ÷ blocks of a request   requests of that length at once

Blocks of a shared prefix count once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvsim.core.request import final_tokens
from kvsim.planning.saturation import mean_over_steps, paged_demand
from kvsim.sizing.budget import KVBudget
from kvsim.sizing.layout import Layout, Service
from kvsim.sizing.request_memory import group_blocks
from kvsim.sizing.vllm_capacity import NULL_BLOCKS

_GROWING = ("full", "latent")
_ANSWER = 8  # a request is this many times its answer


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a KV cache of some size holds.

    Attributes:
        kv: bytes on all GPUs.
        tokens, concurrency: as vLLM prints them.
        requests: of the length in question, at once.
        starts: whether vLLM starts with the maximum length.
    """

    kv: int
    tokens: int
    concurrency: float
    requests: int
    starts: bool


def assumed_prompt(length: int, shared_prefix: int = 0) -> int:
    """Return the tokens of a prompt if only the sum is known: all but an eighth."""
    return max(1, length - max(1, length // _ANSWER), shared_prefix + 1)


def capacity(
    layout: Layout, kv: int, gpus: int, service: Service, length: int, shared_prefix: int = 0,
    prompt: int | None = None,
) -> Capacity:  # fmt: skip
    """Return what ``kv`` bytes on all ``gpus`` hold.

    The last request to be admitted also needs room for its prompt, in chunks.

    Args:
        length: tokens of a request; ``prompt``: of its prompt, None: all but an eighth.
        shared_prefix: tokens at the beginning that all requests have in common, whose full blocks
            they share (prefix caching); of no effect where layers keep less than every token.
    """
    printed = layout.capacity(kv // gpus, service)
    blocks = max(0, printed.blocks - NULL_BLOCKS)
    each, shared = layout.request_blocks(service.decoding, length), 0
    if len(layout.groups) == 1 and layout.groups[0].cache[0].kind in _GROWING:
        shared = min(shared_prefix, length - 1) // layout.groups[0].cache[0].block_size
    own = max(1, each - shared)
    prompt = prompt or assumed_prompt(length, shared_prefix)
    more = max(0, layout.prompt_blocks(service, prompt) - each)
    requests = max(0, blocks - shared - more) // own if blocks >= each else 0
    return Capacity(kv, printed.tokens, printed.max_concurrency, requests, printed.starts)


def capacities(
    layout: Layout, budget: KVBudget, gpus: int, service: Service, length: int, prefix: int = 0,
    prompt: int | None = None,
) -> dict[str, Capacity]:  # fmt: skip
    """Return the capacity at the least, the expected and the most bytes of a budget."""
    sizes = {"low": budget.low, "middle": budget.kv, "high": budget.high}
    return {
        name: capacity(
            layout, budget.kv if size is None else size, gpus, service, length, prefix, prompt
        )
        for name, size in sizes.items()
    }


def mean_blocks(layout: Layout, lengths: Sequence[tuple[int, int]]) -> float:
    """Return the blocks of a request on average over its steps, growing from its prompt.

    Args:
        lengths: (prompt, new) tokens of requests.
    """
    first = layout.groups[0].cache[0]
    if len(layout.groups) == 1 and first.kind in _GROWING:
        return paged_demand(lengths, first.block_size).blocks
    tokens = np.arange(max(map(sum, lengths)) + 1)
    return mean_over_steps(lengths, group_blocks(layout, tokens))


def prompt_room(layout: Layout, service: Service, lengths: Sequence[tuple[int, int]]) -> list[int]:
    """Return the blocks that computing each prompt takes beyond its request's at the end."""
    if not any(cache.span for group in layout.groups for cache in group.cache):
        return [0] * len(lengths)
    decoding = service.decoding
    return [
        max(0, layout.prompt_blocks(service, prompt)
            - layout.request_blocks(decoding, final_tokens(prompt, new)))
        for prompt, new in lengths
    ]  # fmt: skip


def longest(
    layout: Layout, kv: int, gpus: int, service: Callable[[int], Service], most: int
) -> int:
    """Return the largest maximum length with which vLLM starts; 0: none.

    Args:
        service: of a maximum length.
        most: the model's positions.
    """

    def is_too_long(length: int) -> bool:
        return not layout.capacity(kv // gpus, service(length)).starts

    return bisect_left(range(1, most + 1), True, key=is_too_long)
