"""A tiny example of every policy, worked out by hand: a step takes a second, a slot a byte."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from scheduling import CROWD
from streams import Listed, Watched, watched

from kvsim.core.blocks import BlockPool
from kvsim.core.step import Wait, WaitReason
from kvsim.latency.roofline import LinearLatency
from kvsim.sim.config import MAX_BLOCKS
from kvsim.sim.fast.tally import TallyError
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


def rows(seen: Watched, name: str) -> list[float]:
    return list(seen.result.rows[name])


def test_static_slabs_are_held_until_the_longest_row_of_the_batch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two slabs of 8. The short row keeps its slab until the long one ends; the third waits.

    slab 0   - - a a a a . .      prompt of 2, padded to 4, then 2 decoded
    slab 1   b b b b x x . .      ends with its first token
    """
    requests = [(0, 2, 3), (0, 4, 1), (0, 3, 1)]
    seen = run(monkeypatch, requests, config("static", 16))
    assert seen.of("live") == [6, 3, 4, 3]
    assert seen.of("padding") == [2, 2, 2, 0]
    assert seen.of("finished") == [0, 8, 8, 0]
    assert seen.of("unwritten") == [8, 3, 2, 5]
    assert seen.of("free") == [0, 0, 0, 8]
    assert rows(seen, "finished_s") == [3.0, 1.0, 4.0]
    assert rows(seen, "scheduled_s") == [0.0, 0.0, 3.0]
    result = seen.result
    assert (result.tokens.computed, result.tokens.pads, result.tokens.ended) == (15, 2, 2)
    assert result.tokens.recomputed == 0
    assert result.states["finished"].mean_slots == 4.0
    assert result.states["finished"].mean_percent == 25.0
    assert result.batches == 2


def test_every_row_of_a_padded_batch_pays_for_the_longest_prompt() -> None:
    """Two rows of 4, a second for each query and key: 2 x (1 + 2 + 3 + 4), 2 x 5, 2 x 6."""
    told = replace(config("static", 16), latency=LinearLatency(per_pair_s=1.0))
    result = simulate(Listed([(0, 2, 3), (0, 4, 1)]), told)
    assert list(result.rows["finished_s"]) == [20.0 + 10.0 + 12.0, 20.0]


def test_growing_takes_as_many_rows_as_its_last_copy_leaves_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 slots do not hold both: at its last growth a batch of two would take 2 x (6 + 5)."""
    seen = run(monkeypatch, [(0, 2, 3), (0, 4, 1)], config("growing", 16))
    assert seen.of("live") == [2, 3, 4, 4]
    assert seen.of("free") == [14, 13, 12, 12]
    assert seen.result.copies.grown_slots == 2 + 3
    assert seen.result.copies.peak_slots == 3 + 4


def test_rows_that_have_ended_grow_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """22 slots hold both at the last copy; the ended row grows with the other one."""
    seen = run(monkeypatch, [(0, 2, 3), (0, 4, 1)], config("growing", 22))
    assert seen.of("live") == [6, 3, 4]
    assert seen.of("padding") == [2, 2, 2]
    assert seen.of("finished") == [0, 5, 6]
    assert seen.of("free") == [14, 12, 10]
    assert seen.result.copies.grown_slots == 2 * 4 + 2 * 5
    assert seen.result.copies.peak_slots == 22


def test_slabs_are_of_exactly_the_maximum_length_and_handed_on_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """21 slots hold three slabs of 7, where Orca's max has pieces of 8 and holds two."""
    requests = [(0, 2, 3), (0, 4, 1), (0, 2, 2), (0, 3, 1)]
    seen = run(monkeypatch, requests, config("slabs", 21, max_length=7))
    assert seen.of("live") == [8, 9, 4, 0]
    assert seen.of("unwritten") == [13, 12, 3, 0]
    assert seen.of("free") == [0, 0, 14, 21]
    assert [step.waiting for step in seen.steps] == [1, 0, 0, 0]
    assert rows(seen, "finished_s") == [3.0, 1.0, 2.0, 2.0]
    rounded = simulate(Listed(requests), config("max", 21, max_length=7))
    assert rounded.running.max == 2


def test_max_reserves_the_maximum_length_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pieces of the maximum length; the third request takes the one that comes free."""
    seen = run(monkeypatch, [(0, 2, 3), (0, 4, 1), (0, 2, 2)], config("max", 16))
    assert seen.of("live") == [6, 5, 7]
    assert seen.of("written_later") == [2, 2, 0]
    assert seen.of("never_written") == [8, 9, 9]
    assert [step.waiting for step in seen.steps] == [1, 0, 0]
    assert rows(seen, "finished_s") == [3.0, 1.0, 3.0]


def test_pow2_reserves_the_output_rounded_up_to_a_power_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 new tokens are foreseen as 8: 12 slots, a piece of 16. The next needs 32 in a row."""
    seen = run(monkeypatch, [(0, 5, 5), (0, 10, 8)], config("pow2", 32, max_length=20))
    first = seen.steps[0].levels
    assert (first["live"], first["written_later"], first["never_written"]) == (5, 4, 3)
    assert (first["rounding"], first["hole"], first["free"]) == (4, 16, 0)
    assert first["largest_free_piece"] == 16
    assert rows(seen, "scheduled_s") == [0.0, 5.0]


def test_oracle_reserves_no_slot_that_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is known: 9 slots, a piece of 16, of which every slot asked for is written."""
    seen = run(monkeypatch, [(0, 5, 5)], config("oracle", 32, max_length=20))
    assert seen.of("live") == [5, 6, 7, 8, 9]
    assert seen.of("written_later") == [4, 3, 2, 1, 0]
    assert set(seen.of("never_written")) == {0}
    assert set(seen.of("rounding")) == {7}
    assert seen.result.free_run is not None
    assert seen.result.free_run.mean_slots == 16.0


def test_paged_takes_blocks_as_tokens_come_and_gives_them_back_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of 4 for a prompt of 5 and 4 new tokens; another request comes when it has ended."""
    seen = run(monkeypatch, [(0, 5, 4), (10 * SECOND, 1, 1)], config("paged", 16))
    assert seen.of("live") == [5, 6, 7, 8, 0, 1, 0]
    assert seen.of("unwritten") == [3, 2, 1, 0, 0, 3, 0]
    assert seen.of("free") == [8, 8, 8, 8, 16, 12, 16]
    assert rows(seen, "first_token_s") == [1.0, 11.0]
    result = seen.result
    # The two in which nobody computes are none.
    assert (result.span_s, result.busy_s, result.steps) == (11.0, 5.0, 5)
    assert result.states["live"].mean_slots == (5 + 6 + 7 + 8 + 1) / 11
    assert result.running.mean == 5 / 11
    assert result.running.busy_mean == 1.0
    assert result.queue_wait_s.max == 0.0


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
    spread.add([1, 2, 3, 2], [10, 20, 60, 10])
    shares = (0.05, 0.1, 0.11, 0.4, 0.41, 0.5, 0.99)
    assert [spread.quantile(share) for share in shares] == [1, 1, 2, 2, 3, 3, 3]
    told = config("paged", 64, max_num_seqs=3)
    result = run(monkeypatch, [(0, 1, 8), (0, 1, 3), (0, 1, 2)], told).result
    assert (result.running.p50, result.running.p99, result.running.max) == (1, 3, 3)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_the_newer_request_gives_way_and_is_recomputed_or_swapped_in(
    monkeypatch: pytest.MonkeyPatch, preemption: Any
) -> None:
    """3 blocks of 4, two requests of 4 + 3: the newer gives way and comes back."""
    told = config(
        "paged", 12, preemption=preemption, host_blocks=4,
        link_bandwidth=2.0, block_transfer_s=0.5,
    )  # fmt: skip
    seen = run(monkeypatch, [(0, 4, 3), (0, 4, 3)], told)
    result = seen.result
    assert (result.preemptions.total, result.preemptions.requests) == (1, 1)
    if preemption == "recompute":
        assert result.tokens.recomputed == 4
        assert rows(seen, "finished_s") == [3.0, 5.0]
    else:
        assert result.tokens.recomputed == 0
        assert result.preemptions.swapped_bytes == 8
        # A block of 4 bytes moves in 2 s and a half, there and back.
        assert result.busy_s == 5 + 2 * 2.5


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


def test_swapping_takes_as_long_where_every_step_is_taken() -> None:
    """The same, under limits that a cohort refuses: 8 tokens a step for 9 requests."""
    told = config(
        "paged", 12, preemption="swap", host_blocks=4, link_bandwidth=2.0, block_transfer_s=0.5,
        max_num_seqs=9, max_num_batched_tokens=8,
    )  # fmt: skip
    result = simulate(Listed([(0, 4, 3), (0, 4, 3)]), told)
    assert (result.preemptions.total, result.preemptions.swapped_bytes) == (1, 8)
    assert result.busy_s == 5 + 2 * 2.5


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
    ("policy", "slots", "max_length", "reason"),
    [
        ("paged", 8, 20, "blocks"),
        ("max", 15, 10, "slots"),
        ("oracle", 15, 20, "slots"),
        ("growing", 16, 20, "slots"),
    ],
)
def test_a_pool_too_small_for_any_request(
    policy: str, slots: int, max_length: int, reason: str
) -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(Listed([(0, 4, 6)]), config(policy, slots, max_length))
    assert caught.value.code == "nothing_fits"
    assert caught.value.params["reason"] == reason


def test_a_pool_of_nothing() -> None:
    with pytest.raises(SimulationError, match="pool_too_small"):
        config("static", 7)


@pytest.mark.parametrize("policy", ["paged", "slabs", "max", "static"])
def test_a_pool_of_too_many_blocks(policy: str) -> None:
    with pytest.raises(SimulationError, match="pool_too_large"):
        config(policy, 1 << 40)


@pytest.mark.parametrize("policy", ["paged", "paged+prefix"])
def test_blocks_that_no_request_uses_take_no_memory(policy: str) -> None:
    large = config(policy, MAX_BLOCKS * 4)
    tracemalloc.start()
    try:
        assert simulate(Listed([(0, 4, 3)]), large).requests.finished == 1
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_slab_of_millions_of_slots_takes_no_more_than_its_steps() -> None:
    length = 1 << 30
    long = config("slabs", length, length)
    tracemalloc.start()
    try:
        result = simulate(Listed([(0, 4, 5000)]), long)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert result.tokens.computed == 4 + 4999


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_num_seqs", 0),
        ("host_blocks", -1),
        ("branching", 1.5),
        ("beams", 0),
        ("samples", 0),
        ("watermark_blocks", 1_000),
    ],
)
def test_bad_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(SimulationError) as caught:
        config("paged", 16, **{option: value})
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


def test_who_is_urgent_takes_blocks_from_the_least_urgent() -> None:
    """Three blocks of 4: the first two fill them, and one gives way when the other grows."""
    requests = [
        TraceRequest(0, 0, 4, 6, priority=1),
        TraceRequest(1, 0, 4, 6, priority=0),
    ]
    by_order = {
        order: simulate(Listed(requests), config("paged", 12, 12, scheduling_policy=order))
        for order in ("fcfs", "priority")
    }
    first = {name: seen.rows["finished_s"].index(6.0) for name, seen in by_order.items()}
    assert first == {"fcfs": 0, "priority": 1}
    assert {seen.preemptions.total for seen in by_order.values()} == {1}


def test_contiguous_policies_know_no_priorities() -> None:
    with pytest.raises(SimulationError) as caught:
        config("oracle", 16, scheduling_policy="priority")
    assert caught.value.params == {"option": "scheduling_policy", "value": "priority"}


def test_livelock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that admits nobody would go on for ever."""
    refused = Wait(0, WaitReason.BLOCKS)
    monkeypatch.setattr("kvsim.core.placement.Placement.admit", lambda *_: refused)
    with pytest.raises(SimulationError, match="livelock"):
        simulate(Listed([(0, 2, 2)]), config("paged", 16))
