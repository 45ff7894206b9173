"""Slabs and the paged arm over int8 beside Transformers, in one budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from arm_runs import BLOCK_SIZE, Run, make_config, run_arms_here

from experiment.events import ArmFailed, CacheQuantized, Channel, Reading
from experiment.workload.prepared import Prepared
from kvsim.sizing.geometry import KVGeometry

PLAIN = KVGeometry(2, 4, 16, 4)
SMALL_SLOT = 2 * 2 * 4 * 16
SCALES = 2 * 2 * 4 * 4


@pytest.fixture(scope="module")
def int8(runs: Path, prepared: Prepared) -> Run:
    config = make_config("tiny-gpt2", ("contiguous.batch", "slabs", "paged"))
    cache = config.cache.model_copy(update={"kv_dtype": "int8"})
    config = config.model_copy(update={"cache": cache})
    return run_arms_here(runs / "int8", config, prepared)


def test_every_arm_ends_well_and_its_books_agree(int8: Run) -> None:
    assert int8.record.of(ArmFailed) == []
    for arm in int8.results.arms:
        assert (arm.status, arm.problems) == ("finished", [])
        rows = [row for row in int8.rows(arm.arm) if row.tokens]
        assert [row.witness for row in rows] == [row.written for row in rows] != []


@pytest.mark.parametrize(("arm", "block_size"), [("slabs", 512), ("paged", BLOCK_SIZE)])
def test_formula_tensors_and_poison_agree_to_the_byte(int8: Run, arm: str, block_size: int) -> None:
    block = block_size * SMALL_SLOT + SCALES
    budget = int8.workload.budget_bytes
    expected = budget // block * block
    ready = [r for r in int8.readings(arm) if r.stage and r.stage.value == "cache_ready"]
    for channel in (Channel.FORMULA, Channel.TENSORS, Channel.POISON):
        assert _one(ready, channel) == expected
    found = int8.arm(arm)
    assert found.blocks == budget // block > 3.5 * (budget // (block_size * PLAIN.bytes_per_token))
    assert found.peak is not None
    assert found.bytes_of(found.peak.reserved) == found.tensor_bytes == expected <= budget
    assert found.reconciliation is not None
    assert found.reconciliation.agree


def _one(readings: list[Reading], channel: Channel) -> int | None:
    [reading] = [r for r in readings if r.channel is channel]
    return reading.bytes


def test_contiguous_arms_keep_the_precision_of_the_model(int8: Run) -> None:
    batch = int8.arm("contiguous.batch")
    assert (batch.kv_dtype, batch.slot_bytes) == (None, PLAIN.bytes_per_token)
    assert int8.arm("paged").kv_dtype == "int8"


def test_the_error_was_measured_on_the_longest_prompt(int8: Run) -> None:
    events = {event.arm: event for event in int8.record.of(CacheQuantized)}
    assert sorted(events) == ["paged", "slabs"]
    for event in events.values():
        assert (event.request, event.tokens) == (2, 110 + 15)
        assert 0 < event.attention <= event.attention_worst < 0.05
        assert 0 < event.logit_mean < event.logit_largest < event.logit_spread
        assert event.positions == 32 + 15 >= event.same_token > 40
    # A scale for 16 slots fits them better than one for 512.
    assert events["paged"].attention < events["slabs"].attention


def test_slabs_and_blocks_generate_nearly_what_full_precision_generates(int8: Run) -> None:
    for comparison in int8.results.tokens:
        assert not comparison.same_cache
        assert comparison.tokens == 200
        assert (comparison.equal_token_share or 0) > 0.8
