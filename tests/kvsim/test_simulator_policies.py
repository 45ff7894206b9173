"""A tiny example of every policy, worked out by hand: a step takes a second, a slot a byte."""

from __future__ import annotations

import tracemalloc
from array import array
from dataclasses import replace
from typing import Any

import pytest
from scheduling import CROWD
from streams import Listed, Watched, watched

from kvsim.core.blocks import BlockPool
from kvsim.core.step import Wait, WaitReason
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.config import MAX_BLOCKS
from kvsim.sim.fast.decode_only import TallyError
from kvsim.sim.metrics import SimResult
from kvsim.sim.recorder import TimeHistogram
from kvsim.sim.simulator import SIM_POLICIES, SimConfig, SimulationError, simulate
from kvsim.traces import TraceRequest

SECOND = 10**9


def config(policy: Any, slots: int, max_length: int = 8, **more: Any) -> SimConfig:
    more = {"block_size": 4} | more
    return SimConfig(policy, slots, 1, max_length, LinearLatency(fixed_s=1.0), **more)


def run(
    patch: pytest.MonkeyPatch, requests: list[tuple[int, int, int]], told: SimConfig
) -> Watched:
    seen = watched(Listed(requests), told, patch)
    assert simulate(Listed(requests), told).to_json() == seen.result.to_json()
    return seen


SWAPPING = {"preemption": "swap", "host_blocks": 4, "link_bandwidth": 2.0, "block_transfer_s": 0.5}
# A configuration, requests, levels by step, and values of the result.
Example = tuple[SimConfig, list[tuple[int, int, int]], dict[str, list[int]], dict[str, Any]]
WORKED: dict[str, Example] = {
    # Two slabs of 8. The short row keeps its slab until the long one ends; the third waits.
    #     slab 0   - - a a a a . .      prompt of 2, padded to 4, then 2 decoded
    #     slab 1   b b b b x x . .      ends with its first token
    "static": (
        config("static", 16),
        [(0, 2, 3), (0, 4, 1), (0, 3, 1)],
        {
            "live": [6, 3, 4, 3], "padding": [2, 2, 2, 0], "finished": [0, 8, 8, 0],
            "unwritten": [8, 3, 2, 5], "free": [0, 0, 0, 8],
        },
        {
            "rows.finished_s": [3.0, 1.0, 4.0], "rows.scheduled_s": [0.0, 0.0, 3.0],
            "tokens.computed": 15, "tokens.pads": 2, "tokens.ended": 2, "tokens.recomputed": 0,
            "states.finished.mean_slots": 4.0, "states.finished.mean_percent": 25.0, "batches": 2,
        },
    ),
    # 16 slots do not hold both: at its last growth a batch of two would take 2 x (6 + 5).
    "growing, one by one": (
        config("growing", 16),
        [(0, 2, 3), (0, 4, 1)],
        {"live": [2, 3, 4, 4], "free": [14, 13, 12, 12]},
        {"copies.grown_slots": 2 + 3, "copies.peak_slots": 3 + 4, "states.free.low_slots": 12},
    ),
    # 22 slots hold both at the last copy; the ended row grows with the other one.
    "growing, together": (
        config("growing", 22),
        [(0, 2, 3), (0, 4, 1)],
        {"live": [6, 3, 4], "padding": [2, 2, 2], "finished": [0, 5, 6], "free": [14, 12, 10]},
        {"copies.grown_slots": 2 * 4 + 2 * 5, "copies.peak_slots": 22},
    ),
    # 21 slots hold three slabs of 7, where Orca's max has pieces of 8 and holds two.
    "slabs": (
        config("slabs", 21, max_length=7),
        [(0, 2, 3), (0, 4, 1), (0, 2, 2), (0, 3, 1)],
        {"live": [8, 9, 4, 0], "unwritten": [13, 12, 3, 0], "free": [0, 0, 14, 21]},
        {"rows.finished_s": [3.0, 1.0, 2.0, 2.0], "running.max": 3},
    ),
    "max in pieces of 8": (
        config("max", 21, max_length=7),
        [(0, 2, 3), (0, 4, 1), (0, 2, 2), (0, 3, 1)],
        {},
        {"running.max": 2},
    ),
    # Two pieces of the maximum length; the third request takes the one that comes free.
    "max": (
        config("max", 16),
        [(0, 2, 3), (0, 4, 1), (0, 2, 2)],
        {"live": [6, 5, 7], "written_later": [2, 2, 0], "never_written": [8, 9, 9]},
        {"rows.finished_s": [3.0, 1.0, 3.0], "waiting.max": 1},
    ),
    # 5 new tokens are foreseen as 8: 12 slots, a piece of 16. The next needs 32 in a row.
    "pow2": (
        config("pow2", 32, max_length=20),
        [(0, 5, 5), (0, 10, 8)],
        {
            "live": [5], "written_later": [4], "never_written": [3], "rounding": [4], "hole": [16],
            "free": [0], "largest_free_piece": [16],
        },
        {"rows.scheduled_s": [0.0, 5.0]},
    ),
    # The output is known: 9 slots, a piece of 16, of which every slot asked for is written.
    "oracle": (
        config("oracle", 32, max_length=20),
        [(0, 5, 5)],
        {
            "live": [5, 6, 7, 8, 9], "written_later": [4, 3, 2, 1, 0], "never_written": [0] * 5,
            "rounding": [7] * 5,
        },
        {"free_run.mean_slots": 16.0},
    ),
    # Blocks of 4 for a prompt of 5 and 4 new tokens; another request comes when it has ended. The
    # two steps in which nobody computes are none.
    "paged": (
        config("paged", 16),
        [(0, 5, 4), (10 * SECOND, 1, 1)],
        {
            "live": [5, 6, 7, 8, 0, 1, 0], "unwritten": [3, 2, 1, 0, 0, 3, 0],
            "free": [8, 8, 8, 8, 16, 12, 16],
        },
        {
            "rows.first_token_s": [1.0, 11.0], "span_s": 11.0, "busy_s": 5.0, "steps": 5,
            "states.live.mean_slots": (5 + 6 + 7 + 8 + 1) / 11, "running.mean": 5 / 11,
            "running.busy_mean": 1.0, "queue_wait_s.max": 0.0,
        },
    ),
    # 3 blocks of 4, two requests of 4 + 3: the newer gives way and comes back.
    "paged, recomputed": (
        config("paged", 12),
        [(0, 4, 3), (0, 4, 3)],
        {},
        {
            "preemptions.total": 1, "preemptions.requests": 1, "tokens.recomputed": 4,
            "rows.finished_s": [3.0, 5.0],
        },
    ),
    # A block of 4 bytes moves in 2 s and a half, there and back.
    "paged, swapped": (
        config("paged", 12, **SWAPPING),
        [(0, 4, 3), (0, 4, 3)],
        {},
        {
            "preemptions.total": 1, "tokens.recomputed": 0, "preemptions.swapped_bytes": 8,
            "busy_s": 5 + 2 * 2.5,
        },
    ),
    # The same under limits that form no cohort: 8 tokens a step for 9 requests.
    "paged, swapped, step by step": (
        config("paged", 12, **SWAPPING, max_num_seqs=9, max_num_batched_tokens=8),
        [(0, 4, 3), (0, 4, 3)],
        {},
        {"preemptions.total": 1, "preemptions.swapped_bytes": 8, "busy_s": 5 + 2 * 2.5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKED)
def test_an_example_worked_by_hand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, requests, levels, facts = WORKED[name]
    seen = run(monkeypatch, requests, told)
    for level, by_step in levels.items():
        assert seen.of(level)[: len(by_step)] == by_step, level
    for path, expected in facts.items():
        assert fact(seen.result, path) == expected, path


def fact(result: SimResult, path: str) -> Any:
    """A value of a result; ``rows.NAME`` as a list."""
    value: Any = result
    for part in path.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return list(value) if isinstance(value, array) else value


def test_every_row_of_a_padded_batch_pays_for_the_longest_prompt() -> None:
    """Two rows of 4, a second for each query and key: 2 x (1 + 2 + 3 + 4), 2 x 5, 2 x 6."""
    told = replace(config("static", 16), latency=LinearLatency(per_pair_s=1.0))
    result = simulate(Listed([(0, 2, 3), (0, 4, 1)]), told)
    assert list(result.rows["finished_s"]) == [20.0 + 10.0 + 12.0, 20.0]


def test_times_of_a_request_and_between_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a second: a token each, the first after the prompt; one has no second token."""
    told = config("paged", 32, max_num_seqs=1)
    result = run(monkeypatch, [(0, 5, 4), (0, 3, 1)], told).result
    # 3 s for the 3 tokens behind the first one; the other request says nothing of it.
    assert (result.per_output_token_s.count, result.per_output_token_s.mean) == (1, 1.0)
    assert (result.first_token_s.mean, result.latency_s.mean) == ((1 + 5) / 2, (4 + 5) / 2)
    assert (result.queue_wait_s.p50, result.queue_wait_s.max) == (2.0, 4.0)


def test_percentiles_of_who_runs_are_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # 10 s with 1, then 30 s with 2, then 60 s with 3 of them.
    spread = TimeHistogram()
    for count, duration in ((1, 10), (2, 20), (3, 60), (2, 10)):
        spread.add(count, duration)
    shares = (0.05, 0.1, 0.11, 0.4, 0.41, 0.5, 0.99)
    assert [spread.quantile(share) for share in shares] == [1, 1, 2, 2, 3, 3, 3]
    told = config("paged", 64, max_num_seqs=3)
    result = run(monkeypatch, [(0, 1, 8), (0, 1, 3), (0, 1, 2)], told).result
    assert (result.running.p50, result.running.p99, result.running.max) == (1, 3, 3)


@pytest.mark.parametrize(
    ("blocks", "admission", "preempted"),
    [(63, "full", 5), (64, "full", 4), (63, "first_chunk", 38)],
)
def test_admission_decides_how_often_is_preempted(
    blocks: int, admission: Any, preempted: int
) -> None:
    """vLLM's scheduler preempts so too: see conformance/test_vllm_scheduler.py."""
    config = SimConfig(
        "paged", budget_bytes=blocks * 32, slot_bytes=1, max_length=1024, block_size=32,
        max_num_batched_tokens=256, admission=admission,
    )  # fmt: skip
    found = simulate(Listed([(0, prompt, new) for prompt, new in CROWD]), config)
    assert found.preemptions.total == preempted


@pytest.mark.parametrize(("more", "message"), [(1, "unwritten slots of 1"), (-1, "5 live slots")])
def test_a_pool_that_hands_out_another_number_of_blocks_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, more: int, message: str
) -> None:
    """A prompt of 5 in blocks of 4 needs two of them, and gets three or one."""
    take = BlockPool._take
    monkeypatch.setattr(BlockPool, "_take", lambda self, count: take(self, count and count + more))
    with pytest.raises(TallyError, match=message):
        simulate(Listed([(0, 5, 1)]), config("paged", 16))


def test_full_blocks_under_equal_hash_ids_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash blocks of 8 tokens, pool blocks of 4: of 9 equal tokens two blocks are found."""
    requests = [
        TraceRequest(0, 0, 9, 1, (1, 2), 8),
        TraceRequest(1, 5 * SECOND, 9, 1, (1, 2), 8),
        TraceRequest(2, 9 * SECOND, 9, 1, (1, 3), 8),
        TraceRequest(3, 12 * SECOND, 4, 1),
    ]
    seen = watched(Listed(requests), config("paged+prefix", 16, max_length=12), monkeypatch)
    prefix = seen.result.prefix
    assert prefix is not None
    assert (prefix.queried_first, prefix.hit_other_requests) == (27, 16)
    assert prefix.share_of_first == 16 / 27
    assert seen.result.tokens.shared == 16
    assert seen.result.tokens.computed == 9 + 1 + 1 + 4
    assert seen.result.requests.without_hash_ids == 1
    assert seen.of("cached")[:2] == [0, 8]


def test_samples_share_their_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompt of 6 in blocks of 4, three samples of 3: the second block is copied twice."""
    requests = [TraceRequest(0, 0, 6, 3, samples=3)]
    seen = watched(Listed(requests), config("paged", 40, max_length=12), monkeypatch)
    # Prompt; 3 x 1 more in a shared block of 4 and three of its second half; 3 x 2 more.
    assert seen.of("live") == [6, 4 + 3 * 3, 4 + 3 * 4, 0]
    assert seen.result.copies.blocks == 2
    sharing = seen.result.sharing
    assert sharing is not None
    assert (sharing.unshared, sharing.held) == (2 + 6 + 6, 2 + 4 + 4)
    assert (seen.result.tokens.output, seen.result.tokens.recomputed) == (9, 0)


@pytest.mark.parametrize(("branching", "held", "copies"), [(0.0, 18, 0), (1.0, 17, 3)])
def test_beams_share_what_they_have_in_common_and_copy_what_they_write(
    monkeypatch: pytest.MonkeyPatch, branching: float, held: int, copies: int
) -> None:
    """Two beams of 4 + 6 in blocks of 4: apart from the first token, or forked at every one.

    step           1   2   3   4   5   6
    blocks, apart  1   3   3   3   3   5     the prompt is one block of both
    forked         1   3   3   3   3   4     a full block stays shared; a part-filled is copied
    alone          1   4   4   4   4   6
    """
    told = config("paged", 40, max_length=12, beams=2, branching=branching)
    result = watched(Listed([(0, 4, 6)]), told, monkeypatch).result
    assert (result.tokens.computed, result.tokens.recomputed) == (4 + 2 * 5, 0)
    assert (result.requests.finished, result.tokens.output) == (1, 12)
    assert result.copies.blocks == copies
    assert result.sharing is not None
    assert (result.sharing.unshared, result.sharing.held) == (23, held)


def test_what_never_fits_is_refused_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [(0, 8, 2), (0, 2, 2), (1, 9, 9), (2, 1, 1)]
    for policy in SIM_POLICIES:
        seen = run(monkeypatch, requests, config(policy, 16))
        assert seen.result.requests.finished == 2
        (refusal,) = seen.result.requests.refused
        assert (refusal.reason, refusal.count, refusal.first) == ("max_length", 2, 0)
        assert (refusal.needed, refusal.available) == (9, 8)


def test_more_samples_than_may_run_at_a_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [TraceRequest(0, 0, 2, 2, samples=5), TraceRequest(1, 0, 2, 2, samples=4)]
    told = config("paged", 64, max_num_seqs=4)
    seen = watched(Listed(requests), told, monkeypatch)
    (refusal,) = seen.result.requests.refused
    assert (refusal.reason, refusal.needed, refusal.available) == ("seqs", 5, 4)
    assert seen.result.requests.finished == 1


@pytest.mark.parametrize(
    ("policy", "slots", "max_length", "code", "reason"),
    [
        ("paged", 8, 20, "nothing_fits", "blocks"),
        ("max", 15, 10, "nothing_fits", "slots"),
        ("oracle", 15, 20, "nothing_fits", "slots"),
        ("growing", 16, 20, "nothing_fits", "slots"),
        ("static", 7, 8, "pool_too_small", None),
        ("paged", 1 << 40, 8, "pool_too_large", None),
        ("slabs", 1 << 40, 8, "pool_too_large", None),
        ("max", 1 << 40, 8, "pool_too_large", None),
        ("static", 1 << 40, 8, "pool_too_large", None),
    ],
)
def test_a_pool_of_no_use_is_refused(
    policy: str, slots: int, max_length: int, code: str, reason: str | None
) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(Listed([(0, 4, 6)]), config(policy, slots, max_length))
    assert (caught.value.code, caught.value.params.get("reason")) == (code, reason)


@pytest.mark.parametrize(
    ("policy", "slots", "max_length", "output"),
    [
        ("paged", MAX_BLOCKS * 4, 8, 3),
        ("paged+prefix", MAX_BLOCKS * 4, 8, 3),
        ("slabs", 1 << 30, 1 << 30, 5000),
    ],
)
def test_slots_that_no_request_uses_take_no_memory(
    policy: str, slots: int, max_length: int, output: int
) -> None:
    large = config(policy, slots, max_length)
    tracemalloc.start()
    try:
        assert simulate(Listed([(0, 4, output)]), large).tokens.computed == 4 + output - 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("policy", "option", "value"),
    [
        ("paged", "max_num_seqs", 0),
        ("paged", "host_blocks", -1),
        ("paged", "branching", 1.5),
        ("paged", "beams", 0),
        ("paged", "samples", 0),
        ("paged", "watermark_blocks", 1_000),
        ("oracle", "scheduling_policy", "priority"),
    ],
)
def test_bad_options_are_named(policy: str, option: str, value: Any) -> None:
    with pytest.raises(SimulationError) as caught:
        config(policy, 16, **{option: value})
    assert caught.value.params == {"option": option, "value": value}


def test_a_policy_that_cannot_fork_refuses_samples() -> None:
    for told in (config("oracle", 16), config("slabs", 16), config("slabs", 16, max_num_seqs=4,
                 max_num_batched_tokens=2)):  # fmt: skip
        with pytest.raises(SimulationError, match="samples"):
            simulate(Listed([TraceRequest(0, 0, 2, 2, samples=2)]), told)


@pytest.mark.parametrize(
    ("order", "ends"), [("fcfs", [2.0, 4.0, 6.0, 8.0]), ("priority", [4.0, 6.0, 8.0, 2.0])]
)
def test_who_is_urgent_overtakes_all_who_wait(order: Any, ends: list[float]) -> None:
    """One at a time; the last of four is the most urgent."""
    told = config("paged", 16, max_num_seqs=1, scheduling_policy=order)
    requests = [TraceRequest(row, 0, 2, 2, priority=int(row < 3)) for row in range(4)]
    result = simulate(Listed(requests), told)
    assert list(result.rows["finished_s"]) == ends
    assert list(result.rows["priority"]) == [1.0, 1.0, 1.0, 0.0]


def test_livelock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that admits nobody would go on for ever."""
    refused = Wait(0, WaitReason.BLOCKS)
    monkeypatch.setattr("kvsim.core.placement.Placement.admit", lambda *_: refused)
    with pytest.raises(SimulationError, match="livelock"):
        simulate(Listed([(0, 2, 2)]), config("paged", 16))
