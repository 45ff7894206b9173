"""Channels that agree, channels that do not, and channels that could not look."""

from __future__ import annotations

import pytest

from experiment.events import Channel, Reading, Scope, Stage
from experiment.messages import message
from experiment.reconcile import reconcile
from experiment.results import Reconciliation

MIB = 2**20
KV = 144 * MIB


def reading(channel: Channel, stage: Stage | None, size: int | None) -> Reading:
    reason = message("memory.torch_cpu") if size is None else None
    scope = Scope.TREE
    return Reading(arm="a", channel=channel, scope=scope, bytes=size, reason=reason, stage=stage)


def arm(rss_growth: int = KV, counted: int | None = KV) -> Reconciliation:
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, KV),
        reading(Channel.POISON, Stage.CACHE_READY, counted),
        reading(Channel.TENSORS, Stage.CACHE_READY, KV),
        reading(Channel.RSS, Stage.START, 300 * MIB),
        reading(Channel.RSS, Stage.LOADED, 800 * MIB),
        reading(Channel.RSS, Stage.CACHE_READY, 800 * MIB + rss_growth),
        reading(Channel.RSS, None, 1000 * MIB),
        reading(Channel.RSS, Stage.RELEASED, 320 * MIB),
        reading(Channel.TORCH_ALLOCATED, Stage.LOADED, None),
        reading(Channel.TORCH_ALLOCATED, Stage.CACHE_READY, None),
    ]
    found = reconcile(rows, None, None)
    assert found is not None
    return found


def figure(found: Reconciliation, channel: Channel) -> tuple[int | None, bool | None]:
    row = next(row for row in found.rows if row.channel == channel.value)
    return row.bytes, row.agrees


def test_channels_that_see_the_same_bytes_agree() -> None:
    found = arm()
    assert found.agree is True
    assert found.text.key == "reconcile.agree"
    assert figure(found, Channel.RSS) == (KV, True)


def test_a_process_that_grew_by_something_else_is_called_a_difference() -> None:
    found = arm(rss_growth=KV + 20 * MIB)
    assert found.agree is False
    assert found.text.key == "reconcile.differ"
    assert found.text.params["off"] == pytest.approx(20 / 144)


def test_a_count_that_is_one_slot_off_is_a_difference() -> None:
    assert figure(arm(counted=KV - 73_728), Channel.POISON)[1] is False


def test_what_could_not_be_read_is_neither_equal_nor_zero() -> None:
    row = next(r for r in arm().rows if r.channel == Channel.TORCH_ALLOCATED.value)
    assert (row.bytes, row.agrees, row.difference) == (None, None, None)
    assert row.reason == message("memory.torch_cpu")


def test_the_rest_of_the_process_is_told_part_by_part() -> None:
    parts = {part.part: part.bytes for part in arm().parts}
    assert parts == {
        "runtime": 300 * MIB,
        "weights": 500 * MIB,
        "kv": KV,
        "work": (1000 - 944) * MIB,
        "left": 20 * MIB,
    }


def test_a_cache_that_drowns_in_what_allocators_move_is_not_judged_by_them() -> None:
    found = reconcile(
        [
            reading(Channel.FORMULA, Stage.CACHE_READY, MIB),
            reading(Channel.TENSORS, Stage.CACHE_READY, MIB),
            reading(Channel.RSS, Stage.LOADED, 100 * MIB),
            reading(Channel.RSS, Stage.CACHE_READY, 103 * MIB),
        ],
        None,
        None,
    )
    assert found is not None
    assert figure(found, Channel.RSS) == (3 * MIB, None)
    assert found.agree is True


def test_a_spike_while_loading_is_not_called_work_and_an_unknown_start_is_not_zero() -> None:
    rows = [
        reading(Channel.FORMULA, Stage.CACHE_READY, KV),
        reading(Channel.RSS, None, 9000 * MIB),
        reading(Channel.RSS, Stage.LOADED, 800 * MIB),
        reading(Channel.RSS, Stage.CACHE_READY, 800 * MIB + KV),
        reading(Channel.RSS, None, 950 * MIB),
        reading(Channel.RSS, Stage.RELEASED, 320 * MIB),
    ]
    found = reconcile(rows, None, None)
    assert found is not None
    parts = {part.part: part.bytes for part in found.parts}
    assert parts["work"] == 6 * MIB
    assert (parts["runtime"], parts["weights"], parts["left"]) == (None, None, None)


def test_an_arm_without_a_cache_has_nothing_to_reconcile() -> None:
    assert reconcile([reading(Channel.RSS, Stage.START, 1)], None, None) is None
