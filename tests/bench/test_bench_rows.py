"""Figures of a row, worked out by hand from logs of a few steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from event_makers import plans_of

from experiment.bench.figures import (
    checked_seconds,
    decode_step,
    recomputed_tokens,
    running_while_waiting,
    useful_tokens,
)
from experiment.bench.profiles import profiles_of
from experiment.bench.rows import Row, reference_of, rows_of
from experiment.bench.shares import least_times, machine_shares
from experiment.events import (
    ArmFinished,
    ArmSkipped,
    Channel,
    Event,
    HighWaterReset,
    MachineLimits,
    ModelPrepared,
    PoolReserved,
    Reading,
    RequestFinished,
    RunStarted,
    Scope,
    Stage,
    Step,
    StepProfile,
    WorkloadReady,
    WorkloadRequest,
)
from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import timeline
from experiment.text.messages import message
from kvsim.core.step import BlockOp, Chunk, Finish, FinishReason, OpKind, StepPlan

MS = 1_000_000
# One layer, one head of 4: a slot is 2 * 4 * 4 = 32 bytes.
MODEL = ModelPrepared(
    name="m", source="random", architecture="a", parameters=1, weights_sha256="0" * 64,
    dtype="float32", device="cpu", layers=1, kv_heads=1, head_dim=4, element_bytes=4,
    max_positions=64, vocab_size=50, eos_token_id=None,
)  # fmt: skip
LIMITS = MachineLimits(
    threads=1, read_bytes_per_s=1e6, flops_per_s=1e6, matrix_parameters=100, output_parameters=50,
    attention_width=4,
)  # fmt: skip


def step(number: int, begin_ms: float, end_ms: float, **plan: object) -> Step:
    made = StepPlan(number, **plan)  # type: ignore[arg-type]
    return Step(t_ns=int(end_ms * MS), arm="paged", plan=made, started_ns=int(begin_ms * MS))


def ended(request: int, tokens: int, first_s: float = 0.5) -> RequestFinished:
    return RequestFinished(
        arm="paged", request=request, reason="length", prompt_tokens=3, tokens=[7] * tokens,
        text="", wait_s=0.0, first_token_s=first_s, latency_s=1.0,
    )  # fmt: skip


def asked(*lengths: tuple[int, int]) -> WorkloadReady:
    requests = [
        WorkloadRequest(id=i, prompt="x", token_ids=[1] * prompt, max_new_tokens=new)
        for i, (prompt, new) in enumerate(lengths)
    ]
    return WorkloadReady(requests=requests, max_length=16, block_size=4, budget_bytes=8 * 4 * 32)


def scheduled(lengths: list[tuple[int, int]], blocks: int, step_ms: float) -> list[Step]:
    """What the real scheduler decides, each step of the same length, with a pause behind each."""
    begins = [(plan, plan.step * (step_ms + 1)) for plan in plans_of(lengths, blocks, 4)]
    return [
        Step(t_ns=int((at + step_ms) * MS), arm="paged", plan=plan, started_ns=int(at * MS))
        for plan, at in begins
    ]


def record(events: list[Event], workload: WorkloadReady) -> Record:
    started = RunStarted(version="1", wall_ns=0, utc_offset_s=0, lang="en", command=[], config={})
    return Record(Path("none"), (started, MODEL, workload, LIMITS, *events))


def finished(seconds: float) -> ArmFinished:
    return ArmFinished(
        arm="paged", import_s=1.0, load_s=2.0, generate_s=seconds, threads=2, device_name="cpu"
    )


def pool(blocks: int) -> PoolReserved:
    return PoolReserved(
        arm="paged", blocks=blocks, block_size=4, slot_bytes=32, tensor_bytes=blocks * 4 * 32,
        budget_bytes=blocks * 4 * 32,
    )  # fmt: skip


def test_a_row_of_the_real_schedulers_plans() -> None:
    lengths = [(6, 4), (6, 4)]
    steps = scheduled(lengths, blocks=8, step_ms=100)
    count = sum(bool(each.plan.chunks) for each in steps)
    seconds = count * 0.1
    events: list[Event] = [pool(8), *steps, ended(0, 4), ended(1, 4, 1.5), finished(seconds)]
    row = rows_of(record(events, asked(*lengths)), "B", 3)[0]
    assert (row.workload, row.arm, row.round, row.status) == ("B", "paged", 3, "finished")
    assert row.problems == []
    assert row.useful_tokens == 8
    assert row.useful_tokens_per_s == pytest.approx(8 / seconds)
    assert row.peak_kv_bytes == 8 * 4 * 32
    # 6 + 4 - 1 slots are three blocks each.
    assert row.peak_allocated_bytes == 6 * 4 * 32
    assert (row.first_token_median_s, row.first_token_max_s) == (1.0, 1.5)
    assert (row.preemptions, row.recomputed_tokens) == (0, 0)
    assert (row.decode_requests, row.decode_step_s) == (2, pytest.approx(0.1))
    assert row.mean_running is None
    assert row.mean_running_reason == message("bench.nobody_waited")
    assert row.mean_running_all == pytest.approx(2.0)
    assert row.equal_requests == row.requests == 2


def test_preempted_requests_compute_again_and_others_wait() -> None:
    lengths = [(6, 9), (6, 9)]
    steps = scheduled(lengths, blocks=5, step_ms=10)
    events: list[Event] = [pool(5), *steps, ended(0, 9), ended(1, 9), finished(len(steps) / 100)]
    row = rows_of(record(events, asked(*lengths)), "C", 0)[0]
    assert row.preemptions == 1
    assert row.recomputed_tokens is not None
    assert row.recomputed_tokens > 0
    assert row.mean_running == pytest.approx(1.0)  # alone while the other one waits


def test_an_arm_that_was_skipped_has_a_row_with_the_reason() -> None:
    skipped = ArmSkipped(arm="vllm", reason=message("vllm.missing"))
    row = rows_of(record([skipped], asked((3, 2))), "A", 0)[0]
    assert (row.status, row.reason) == ("skipped", message("vllm.missing"))
    assert row.useful_tokens_per_s is None


def test_tokens_beyond_what_was_asked_for_are_not_useful() -> None:
    assert useful_tokens([ended(0, 9), ended(1, 2), ended(5, 4)], asked((3, 5), (3, 2))) == 7


def test_less_work_than_was_asked_for_has_no_rate() -> None:
    steps = scheduled([(6, 4)], blocks=8, step_ms=100)
    events: list[Event] = [pool(8), *steps, ended(0, 3), finished(0.4)]
    row = rows_of(record(events, asked((6, 4))), "B", 0)[0]
    assert row.useful_tokens == 3
    assert row.useful_tokens_per_s is None
    assert row.problems == [message("bench.problem.lacking", n=1)]


def test_a_time_that_the_steps_contradict_gives_no_rate() -> None:
    steps = scheduled([(6, 4)], blocks=8, step_ms=100)
    events: list[Event] = [pool(8), *steps, ended(0, 4), finished(0.2)]
    row = rows_of(record(events, asked((6, 4))), "B", 0)[0]
    assert (row.useful_tokens, row.generate_s, row.useful_tokens_per_s) == (4, None, None)
    assert row.problems


def test_a_decode_step_is_one_of_as_many_requests_as_ever() -> None:
    def decoding(number: int, ms: int, requests: int) -> Step:
        begin = number * 1000
        chunks = tuple(Chunk(request, number, 1, True) for request in range(requests))
        return step(number, begin, begin + ms, chunks=chunks)

    some = [decoding(0, 40, 3), decoding(1, 60, 3), decoding(2, 50, 3), decoding(3, 10, 1)]
    assert decode_step(some) == {"decode_step_s": pytest.approx(0.05), "decode_requests": 3}


STEPS = [step(i, i * 1000, i * 1000 + 600, chunks=(Chunk(0, i, 1, True),)) for i in range(10)]


CLAIMS = {6.0: True, 7.7: True, 9.6: True, 5.99: False, 9.9: False, 0.1: False}


@pytest.mark.parametrize(("claimed", "believed"), CLAIMS.items())
def test_the_arms_seconds_are_held_to_its_steps(claimed: float, believed: bool) -> None:
    seconds, problem = checked_seconds(claimed, STEPS)
    assert (seconds == claimed) is believed
    assert (problem is None) is believed


def test_only_steps_that_leave_others_waiting_count_weighted_by_time() -> None:
    lengths = [(4, 2), (4, 6), (4, 2)]
    steps = scheduled(lengths, blocks=5, step_ms=10)
    events: list[Event] = [pool(5), *steps]
    rows, _ = timeline(split_by_arm(record(events, asked(*lengths)))[0])
    waiting = [row for row in rows if row.running and row.waiting]
    assert 0 < len(waiting) < sum(bool(row.running) for row in rows)
    mean, _ = running_while_waiting(rows)
    assert mean == pytest.approx(sum(row.running for row in waiting) / len(waiting))
    # A step with five requests, three times as long: they weigh three times.
    longer = waiting[0].model_copy(update={"t_ns": waiting[0].t_ns + 20 * MS, "running": 5})
    one = waiting[0].model_copy(update={"running": 1})
    assert running_while_waiting([longer, one])[0] == pytest.approx((3 * 5 + 1) / 4)


def test_positions_computed_twice_are_counted_and_rows_that_ended_are_not() -> None:
    steps = [
        step(0, 0, 1, chunks=(Chunk(0, 0, 5, True), Chunk(1, 0, 3, False))),
        step(1, 1, 2, chunks=(Chunk(1, 3, 2, True),), preempted=(0,),
             ops=(BlockOp(OpKind.FREE, 0, (0, 1)),)),
        step(2, 2, 3, chunks=(Chunk(0, 0, 4, False),)),
        step(3, 3, 4, chunks=(Chunk(0, 4, 2, True),)),  # position 4 again, 5 for the first time
        step(4, 4, 5, chunks=(Chunk(1, 2, 1, False),), finished=(Finish(1, FinishReason.LENGTH),)),
    ]  # fmt: skip
    assert recomputed_tokens(steps) == 5


def test_without_steps_nothing_is_known_of_recomputed_tokens() -> None:
    assert recomputed_tokens([]) is None
    assert recomputed_tokens([step(0, 0, 1)]) is None
    assert recomputed_tokens([step(0, 0, 1, chunks=(Chunk(0, 0, 5, True),))]) == 0


def test_work_that_is_done_again_is_no_useful_work() -> None:
    again = (Chunk(0, 0, 12, True),)  # after a preemption: 11 positions as before, one new
    steps = [
        step(0, 0, 10, chunks=(Chunk(0, 0, 10, True),)),
        step(1, 10, 12, chunks=(Chunk(0, 10, 1, True),)),
        step(2, 12, 22, chunks=again),
    ]
    prefill, decode = machine_shares(steps, MODEL, LIMITS, {0: 10})
    assert (prefill.steps, decode.steps) == (2, 1)
    assert prefill.seconds == pytest.approx(0.020)
    new = max(least_times([Chunk(0, 11, 1, True)], MODEL, LIMITS))
    first = max(least_times([Chunk(0, 0, 10, True)], MODEL, LIMITS))
    assert prefill.least_s == pytest.approx(first + new)
    assert max(least_times(again, MODEL, LIMITS)) > 2 * new
    # Nothing new at all: time is spent, and no work counts.
    wasted, _ = machine_shares(
        [*steps[:2], step(2, 12, 22, chunks=(Chunk(0, 0, 8, False),))], MODEL, LIMITS, {0: 10}
    )
    assert (wasted.seconds, wasted.least_s) == (pytest.approx(0.020), pytest.approx(first))


def least(chunks: list[Chunk]) -> float:
    return max(least_times(chunks, MODEL, LIMITS))


def test_the_least_time_is_the_longer_of_reading_and_computing() -> None:
    # Reads 100 + 50 weights of 4 bytes and 9 + 1 slots of 32: 920 bytes. Computes 2 * 150 and
    # attends 10 positions, 4 operations each and element of the width: 460 operations.
    assert least([Chunk(0, 9, 1, True)]) == pytest.approx(920e-6)
    # Without a sample no output projection, neither read nor computed.
    assert least([Chunk(0, 9, 1, False)]) == pytest.approx(720e-6)
    # Ten rows: 2 * 10 * 100 + 4 * 55 * 4 = 2,880
    # operations; reads 400 bytes and writes 320.
    assert least([Chunk(0, 0, 10, False)]) == pytest.approx(2880e-6)


def test_of_the_last_layer_a_row_without_a_token_needs_keys_and_values_alone() -> None:
    limits = LIMITS.model_copy(update={"sampled_parameters": 60})
    model = MODEL.model_copy(update={"layers": 2})
    # 2 * 10 * 40 weights, and 4 operations for each of 55 positions and half of the width.
    silent, told = ([Chunk(0, 0, 10, samples)] for samples in (False, True))
    assert least_times(silent, model, limits)[1] == pytest.approx(1240e-6)
    # The row that gives a token: 2 * (60 + 50) weights, 10 positions over the other half.
    assert least_times(told, model, limits)[1] == pytest.approx((1240 + 220 + 80) * 1e-6)
    slots = 10 * model.slot_bytes
    assert least_times(silent, model, limits)[0] == pytest.approx((4 * 40 + slots) * 1e-6)
    assert least_times(told, model, limits)[0] == pytest.approx((4 * 150 + slots) * 1e-6)


def test_prompts_and_decoding_are_told_apart_and_ended_rows_left_out() -> None:
    steps = [
        step(0, 0, 10, chunks=(Chunk(0, 0, 10, True), Chunk(1, 0, 2, True))),
        step(1, 10, 12, chunks=(Chunk(0, 10, 1, True), Chunk(1, 2, 1, True))),
        step(2, 12, 14, chunks=(Chunk(0, 11, 1, True), Chunk(1, 3, 1, False)),
             finished=(Finish(1, FinishReason.LENGTH),)),
        step(3, 14, 15),
    ]  # fmt: skip
    prefill, decode = machine_shares(steps, MODEL, LIMITS, {0: 10, 1: 2})
    assert (prefill.steps, decode.steps) == (1, 2)
    assert prefill.seconds == pytest.approx(0.010)
    # The only token of a prompt is a prompt all the same.
    prefill_of_one, _ = machine_shares(
        [step(0, 0, 1, chunks=(Chunk(0, 0, 1, True),))], MODEL, LIMITS, {0: 1}
    )
    assert prefill_of_one.steps == 1
    alone = least([Chunk(0, 11, 1, True)])
    both = least([Chunk(0, 10, 1, True), Chunk(1, 2, 1, True)])
    assert decode.share == pytest.approx((alone + both) / 0.004)


# -- what an arm's process held, found and did --------------------------------------------------


def reading(at_s: float, size: int, channel: Channel = Channel.RSS, stage: Any = None) -> Reading:
    return Reading(
        t_ns=int(at_s * 1e9), arm="paged", channel=channel, scope=Scope.TREE, bytes=size,
        stage=stage,
    )  # fmt: skip


def peaks(reset: str | None) -> Row:
    why = None if reset is None else message(reset)
    mark = Channel.HIGH_WATER
    events: list[Event] = [
        reading(1, 100, stage=Stage.LOADED),
        reading(2, 900),  # both copies of the weights, for a moment
        reading(3, 400, stage=Stage.CACHE_READY),
        reading(3.1, 950, mark, Stage.CACHE_READY),  # taken at the same stop
        HighWaterReset(arm="paged", reason=why),
        pool(8),
        *scheduled([(6, 4)], blocks=8, step_ms=100),
        reading(5, 500),
        reading(6, 520 if reset is None else 950, mark, Stage.LAST_STEP),
        ended(0, 4),
        finished(0.4),
    ]
    return rows_of(record(events, asked((6, 4))), "A", 0)[0]


def test_what_loading_took_is_no_peak_of_the_work() -> None:
    row = peaks(None)
    assert (row.process_peak_bytes, row.loading_peak_bytes) == (520, 950)


def test_a_mark_that_did_not_begin_anew_tells_nothing_of_the_work() -> None:
    row = peaks("memory.not_this_os")
    assert (row.process_peak_bytes, row.loading_peak_bytes) == (500, 950)


# -- whose tokens the others' are compared with --------------------------------------------------


def done(arm: str, status: str = "finished") -> Row:
    return Row(workload="A", arm=arm, round=0, status=status)


def test_tokens_are_compared_with_transformers_one_by_one_whatever_the_order() -> None:
    arms = ["paged", "vllm", "contiguous.batch", "contiguous.sequential"]
    assert reference_of([done(arm) for arm in arms]) == "contiguous.sequential"
    assert reference_of([done(arm) for arm in arms[:3]]) == "contiguous.batch"
    padded = ["contiguous.growing", "contiguous.batch"]
    assert reference_of([done(arm) for arm in padded]) == "contiguous.batch"
    assert reference_of([done("paged"), done("contiguous.batch", "failed")]) == "paged"
    assert reference_of([done("paged", "failed")]) is None


def of_arm(event: Any, arm: str, **changes: Any) -> Any:
    return event.model_copy(update={"arm": arm, **changes})


def test_the_row_that_differs_is_the_one_that_parts_from_the_reference() -> None:
    mine: list[Event] = [pool(8), *scheduled([(6, 4)], 8, 100), ended(0, 4), finished(0.4)]
    theirs = [of_arm(event, "contiguous.sequential") for event in mine]
    wrong = [
        of_arm(each, "paged", tokens=[1, 2, 3, 4]) if isinstance(each, RequestFinished) else each
        for each in mine
    ]
    rows = {row.arm: row for row in rows_of(record([*wrong, *theirs], asked((6, 4))), "A", 0)}
    assert {row.reference for row in rows.values()} == {"contiguous.sequential"}
    assert rows["paged"].equal_requests == 0
    assert rows["contiguous.sequential"].equal_requests == rows["paged"].requests == 1
    assert rows["paged"].equal_first_tokens == 0
    assert rows["contiguous.sequential"].equal_first_tokens == 1


# -- profiles ------------------------------------------------------------------------------------


def test_a_plain_step_is_of_the_process_that_was_profiled() -> None:
    both = (Chunk(0, 5, 1, True), Chunk(1, 5, 1, True))
    event = StepProfile(
        t_ns=int(40 * MS), arm="paged", steps=2, requests=2, step_ms=15.0, matrix_ms=6.0,
        attention_ms=1.0, other_ms=1.0, rest_ms=7.0, trace=None,
    )  # fmt: skip
    steps = [
        step(0, 0, 30, chunks=both), step(1, 30, 40, chunks=both),  # under the profiler
        step(2, 41, 50, chunks=both), step(3, 50, 57, chunks=both), step(4, 57, 68, chunks=both),
        step(5, 70, 71, chunks=both[:1]),  # fewer requests
        step(6, 72, 99, chunks=(Chunk(0, 0, 9, True), both[1])),  # a prompt
    ]  # fmt: skip
    other = of_arm(step(7, 41, 42, chunks=both), "slabs")
    (found,) = profiles_of(record([*steps[:2], event, *steps[2:], other], asked((6, 4))), "A", 3)
    assert (found.plain_step_ms, found.plain_steps) == (pytest.approx(9.0), 3)
    assert (found.workload, found.round, found.matrix_ms) == ("A", 3, 6.0)
    (none,) = profiles_of(record([*steps[:2], event], asked((6, 4))), "A", 3)
    assert (none.plain_step_ms, none.plain_steps) == (None, 0)
