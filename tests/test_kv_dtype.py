"""Another precision of the cache: where it is refused, what fits, what a report says of it."""

from __future__ import annotations

from typing import Any

import pytest
from event_makers import BATCH, BUDGET, PAGED, TOKENS, batch_arm, changed, head, paged_arm, record

from experiment.analysis.conclusions import evaluate
from experiment.analysis.results import Results
from experiment.config.kv_dtype import cache_geometry, check_kv_dtype
from experiment.config.schema import Config
from experiment.events import (
    CacheQuantized,
    Event,
    PoolReserved,
    WorkloadRequest,
)
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.workload.requests import make_workload
from kvsim.sizing.geometry import KVGeometry

GPT2 = KVGeometry(12, 12, 64, 4)


def refusal(*arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_kv_dtype(*arguments)
    for lang in LANGUAGES:
        assert "fp8" in Translator(lang).message(caught.value.text)
    return caught.value.text.key


def test_fp8_needs_the_hardware_and_int8_needs_nothing() -> None:
    assert refusal("fp8", ("paged",), "cpu", None) == "error.kv_dtype.cpu"
    assert refusal("fp8", ("slabs",), "cuda", (8, 0)) == "error.kv_dtype.gpu"
    assert refusal("fp8", ("contiguous.batch", "paged"), "cuda", (7, 5)) == "error.kv_dtype.gpu"
    for capability in ((8, 9), (9, 0), (10, 0)):
        check_kv_dtype("fp8", ("paged",), "cuda", capability)
    check_kv_dtype("fp8", ("contiguous.batch",), "cpu", None)  # nobody would use it
    for kv_dtype in ("int8", "auto"):
        check_kv_dtype(kv_dtype, ("paged", "slabs"), "cpu", None)


def test_the_budget_is_counted_in_bytes_of_blocks_and_scales() -> None:
    slot = GPT2.bytes_per_token
    requests = [WorkloadRequest(id=0, prompt="x", token_ids=[1] * 110, max_new_tokens=50)]
    cache = cache_geometry(GPT2, "int8")

    def made(budget: int, *arms: str) -> int:
        config = Config.model_validate({"cache": {"budget": budget}})
        return make_workload(config, requests, slot, arms, cache.block_bytes).budget_bytes

    needed = 10 * (16 * slot // 4 + 2 * 12 * 12 * 4)
    assert made(needed, "paged") == needed
    slab = 512 * slot // 4 + 2 * 12 * 12 * 4
    assert made(slab, "slabs") == slab
    for budget, arm in ((needed - 1, "paged"), (slab - 1, "slabs"), (slab, "contiguous.batch")):
        with pytest.raises(UserError):
            made(budget, arm)
    auto = make_workload(Config(), requests, slot, ("paged",), cache.block_bytes)
    assert auto.budget_bytes == 512 * slot  # the same as for everybody


def quantized_run(tokens: dict[int, list[int]] | None = None) -> Results:
    """The paged arm of the hand-made run with blocks of 5 bytes where the model would take 8."""
    blocks = BUDGET // 5
    pool = {"slot_bytes": 2, "scale_bytes": 1, "kv_dtype": "int8", "tensor_bytes": 8 * 5}
    arm: list[Event] = changed(
        paged_arm(tokens), PoolReserved, lambda event: event.model_copy(update=pool), PAGED
    )
    measured = CacheQuantized(
        arm=PAGED, kv_dtype="int8", block_size=2, block_bytes=5, plain_block_bytes=8,
        blocks=blocks, plain_blocks=BUDGET // 8, request=1, tokens=9, attention=0.012,
        attention_worst=0.02, logit_mean=0.1, logit_largest=0.5, logit_spread=2.0, positions=8,
        same_token=6,
    )  # fmt: skip
    return evaluate(record([*head(), *batch_arm(), arm[0], measured, *arm[1:]]))


def test_slots_are_worth_their_share_of_the_scales() -> None:
    arm = quantized_run().arm(PAGED)
    assert arm is not None
    assert arm.peak is not None
    assert (arm.bytes_of(arm.peak.reserved), arm.tensor_bytes) == (40, 40)
    assert arm.bytes_per_slot == 2.5
    assert (arm.fits, arm.fits_plain) == (5, 3)  # 12 and 8 blocks, in turn 2 and 3 of them
    batch = quantized_run().arm(BATCH)
    assert batch is not None
    assert batch.fits == batch.fits_plain


def test_what_eight_bits_add_is_not_called_a_gain_of_paging() -> None:
    results = quantized_run()
    assert results.headline.key == "headline.quantized"
    params = results.headline.params
    assert (params["contiguous_fits"], params["paged_fits"], params["kv_fits"]) == (2, 3, 5)
    keys = {line.key for line in results.fairness}
    assert "fairness.kv_dtype" in keys
    assert "fairness.dtype" not in keys
    plain = evaluate(record([*head(), *batch_arm(), *paged_arm()]))
    assert plain.headline.key == "headline.both"
    assert plain.quantized == []
    assert "fairness.dtype" in {line.key for line in plain.fairness}


def test_a_comparison_says_that_the_caches_differ_and_how_far_tokens_agree() -> None:
    [same] = quantized_run().tokens
    assert (same.equal, same.same_cache, same.equal_token_share) == (True, False, 1.0)
    [other] = quantized_run({**TOKENS, 1: [20, 99, 22]}).tokens
    assert (other.kv_dtype, other.reference_kv_dtype, other.same_cache) == ("int8", None, False)
    assert (other.first_difference, other.equal_requests) == ((1, 1), 1)
    assert (other.tokens, other.equal_tokens) == (6, 4)
    [plain] = evaluate(record([*head(), *batch_arm(), *paged_arm()])).tokens
    assert plain.same_cache
