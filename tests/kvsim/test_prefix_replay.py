"""Prefix hits without a clock: plain models of each order of eviction, and published figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.sim.prefix_replay import (
    EVICTIONS,
    Eviction,
    NoHashIdsError,
    References,
    collect,
    replay_prefixes,
)
from kvsim.traces import TraceFile, TraceRequest

TRACE = Path(__file__).resolve().parents[3] / "shared" / "traces/mooncake_conversation_trace.jsonl"
SIZE = 4


def request(number: int, ids: tuple[int, ...] | None, short: int = 0) -> TraceRequest:
    prompt = max(1, len(ids or ()) * SIZE - short)
    return TraceRequest(number, number, prompt, 1, ids, None if ids is None else SIZE)


# Ids that are chained as real ones are: a prompt is a path from the root of a tree.
Paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25)


def chained(paths: list[list[int]]) -> list[TraceRequest]:
    names: dict[tuple[int, ...], int] = {}
    return [
        request(
            number,
            tuple(names.setdefault(tuple(p[: i + 1]), len(names) + 50) for i in range(len(p))),
            short=number % SIZE,
        )
        for number, p in enumerate(paths)
    ]


def plainly(
    requests: list[TraceRequest], eviction: Eviction, capacity: int | None
) -> tuple[int, ...]:
    """Blocks and tokens found, and blocks evicted; everything looked up the slow way."""
    stream = [(r, i, b) for r in requests for i, b in enumerate(r.hash_ids or ())]
    cache: list[int] = []  # the first goes first
    hits = tokens = evicted = 0
    missed: set[int] = set()
    for r, place, block in stream:
        if block in cache:
            if r.id not in missed:
                hits += 1
                tokens += min(SIZE, r.prompt_tokens - place * SIZE)
            if eviction == "lru":
                cache.remove(block)
                cache.append(block)
            continue
        missed.add(r.id)
        if len(cache) == capacity:
            evicted += 1
            cache.pop(0)
        cache.append(block)
    return hits, tokens, evicted


@given(
    paths=Paths,
    capacity=st.none() | st.integers(1, 12),
    eviction=st.sampled_from(["lru", "fifo"]),
)
def test_lru_and_fifo_are_what_a_plain_list_gives(
    paths: list[list[int]], capacity: int | None, eviction: Eviction
) -> None:
    requests = chained(paths)
    found = replay_prefixes(collect(requests), eviction, capacity)
    expected = plainly(requests, eviction, capacity)
    assert (found.hit_blocks, found.hit_tokens, found.evicted) == expected
    assert found.tokens == sum(r.prompt_tokens for r in requests)
    assert found.requests == len(requests)


@given(data=st.data())
def test_the_optimum_is_the_optimum(data: st.DataObject) -> None:
    """Against every possible choice of what to evict."""
    blocks = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    capacity = data.draw(st.integers(1, 3))
    references = collect([request(i, (b,)) for i, b in enumerate(blocks)])

    def best(at: int, cache: frozenset[int]) -> int:
        if at == len(blocks):
            return 0
        block = blocks[at]
        if block in cache:
            return 1 + best(at + 1, cache)
        if len(cache) < capacity:
            return best(at + 1, cache | {block})
        return max(best(at + 1, cache - {out} | {block}) for out in cache)

    assert replay_prefixes(references, "optimal", capacity).hit_blocks == best(0, frozenset())


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_a_block_behind_a_missing_one_is_an_orphan_and_no_hit(eviction: Eviction) -> None:
    # No chain of prefixes has these ids: 2 comes after 1 and after 3.
    references = collect([request(0, (1, 2)), request(1, (3, 2)), request(2, (1, 2))])
    found = replay_prefixes(references, eviction, 4)
    assert (found.hit_blocks, found.orphaned, found.hit_tokens) == (2, 1, 2 * SIZE)
    assert found.hit_share_blocks == 2 / 6
    assert found.bound_share_blocks == 3 / 6


def test_requests_without_ids_are_counted_and_a_trace_of_them_is_refused() -> None:
    references = collect([request(0, (1,)), request(1, None)])
    assert replay_prefixes(references, "lru", 4).skipped == 1
    with pytest.raises(NoHashIdsError):
        collect([request(0, None)])
    with pytest.raises(NoHashIdsError):
        collect([request(0, (1,)), request(1, (1,))._replace(hash_block_size=8)])
    with pytest.raises(ValueError, match="0 blocks"):
        replay_prefixes(references, "lru", 0)


@pytest.fixture(scope="module")
def mooncake() -> References:
    if not TRACE.exists():
        pytest.skip("the public traces are not beside this checkout (../shared/traces)")
    return collect(TraceFile(TRACE))


@pytest.mark.parametrize(
    ("capacity", "blocks", "tokens"), [(5_859, 13.55, 13.82), (None, 36.64, 37.36)]
)
def test_the_mooncake_trace_agrees_with_independent_figures(
    mooncake: References, capacity: int | None, blocks: float, tokens: float
) -> None:
    found = replay_prefixes(mooncake, "lru", capacity)
    assert found.hit_share_blocks is not None
    assert found.hit_share_tokens is not None
    assert 100 * found.hit_share_blocks == pytest.approx(blocks, abs=0.01)
    assert 100 * found.hit_share_tokens == pytest.approx(tokens, abs=0.01)
