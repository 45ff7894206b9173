"""Real arms: what they reserve, hold and generate."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arm_runs import Run, make_config, run_arms, with_requests
from arms_here import events_of, prepare_here
from safetensors.torch import load_file, save_file
from transformers import GenerationMixin, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from experiment.analysis.throughput_claim import throughput
from experiment.arms.base import ArmRun
from experiment.config.schema import Config
from experiment.events import (
    ArmFailed,
    ArmFinished,
    CacheMoved,
    Channel,
    ProfileRun,
    Reading,
    Stage,
    StageEntered,
    Step,
    TokenMapping,
)
from experiment.machine.environment import Environment
from experiment.model.load import load_model
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode, UserError
from experiment.workload.prepared import Prepared
from kvsim.core.step import FinishReason, StepPlan

RUNS = ("worked_example", "crowded", "stopping", "llama")
SLOT_BYTES = 2 * 2 * 4 * 16 * 4  # K and V, 2 layers, 4 heads of 16, fp32


@pytest.fixture(params=RUNS)
def each(request: pytest.FixtureRequest) -> Run:
    run: Run = request.getfixturevalue(request.param)
    return run


def test_every_arm_finishes_without_a_contradiction(each: Run) -> None:
    assert each.record.of(ArmFailed) == []
    assert each.record.damaged_lines == 0
    assert len(each.record.of(ArmFinished)) == len(each.arms) >= 2
    for arm in each.results.arms:
        assert (arm.status, arm.problems) == ("finished", []), arm.arm


def test_all_arms_generate_the_same_tokens(each: Run) -> None:
    reference = each.tokens(each.arms[0])
    assert sorted(reference) == [request.id for request in each.workload.requests]
    for arm in each.arms[1:]:
        assert each.tokens(arm) == reference, arm
    assert [c.equal for c in each.results.tokens] == [True] * (len(each.arms) - 1)


def test_each_arm_computes_prompts_like_these_before_its_clock_begins(each: Run) -> None:
    ran = {event.arm: event for event in each.record.of(ProfileRun)}
    assert set(ran) == set(each.arms)
    for arm, event in ran.items():
        assert event.requests == 1 or arm in ("contiguous.batch", "slabs", "paged")
        assert event.prompt_tokens >= event.requests > 0
        assert event.kept == (sys.platform == "linux" and arm in ("slabs", "paged"))
        entered = [e for e in each.record.of(StageEntered) if e.arm == arm]
        ready = next(e.t_ns for e in entered if e.stage is Stage.CACHE_READY)
        steps = [step.started_ns for step in each.record.of(Step) if step.arm == arm]
        assert ready < event.t_ns < min(steps)


def test_steps_take_no_more_than_the_arms_own_clock_and_hardly_less(each: Run) -> None:
    """Readings, logging and the counting of slots are in neither; what an arm decides is."""
    for arm in each.arms:
        steps = [s for s in each.record.of(Step) if s.arm == arm and s.plan.chunks]
        busy = sum(step.t_ns - step.started_ns for step in steps) / 1e9
        whole = next(e.generate_s for e in each.record.of(ArmFinished) if e.arm == arm)
        assert 0 < busy <= whole, arm
        assert all(step.started_ns <= step.t_ns for step in steps)


def test_the_tensors_hold_as_many_slots_as_the_tables_say_at_every_step(each: Run) -> None:
    for arm in each.arms:
        # A step that only gives memory back is not counted in the tensors.
        rows = [row for row in each.rows(arm) if row.tokens]
        assert [row.witness for row in rows] == [row.written for row in rows], arm
        assert each.arm(arm).witnessed_steps >= len(rows) > 1


def test_live_is_within_allocated_is_within_reserved_is_within_the_budget(each: Run) -> None:
    for arm in each.arms:
        pool = each.pool(arm)
        for row in each.rows(arm):
            assert row.reserved >= row.allocated >= row.live >= 0
            assert row.wasted == row.allocated - row.live
            assert row.reserved * pool.slot_bytes <= pool.budget_bytes
        assert each.arm(arm).tensor_bytes <= pool.budget_bytes


def test_each_stage_is_entered_in_order_and_read(each: Run) -> None:
    for arm in each.arms:
        stages = [s.stage for s in each.record.of(StageEntered) if s.arm == arm]
        done = [Stage.REQUEST_DONE] * len(each.workload.requests)
        assert sorted(stages, key=list(Stage).index) == [
            Stage.START, Stage.LOADED, Stage.CACHE_READY, *done, Stage.LAST_STEP, Stage.RELEASED
        ]  # fmt: skip
        assert stages[:3] == [Stage.START, Stage.LOADED, Stage.CACHE_READY]
        assert stages[-1] is Stage.RELEASED
        tensors = {r.stage: r.bytes for r in each.readings(arm) if r.channel is Channel.TENSORS}
        assert tensors[Stage.RELEASED] == 0
        assert tensors[Stage.LAST_STEP] > 0


def test_a_batch_reserves_a_slab_for_each_request(worked_example: Run) -> None:
    arm = worked_example.arm("contiguous.batch")
    assert arm.slot_bytes == SLOT_BYTES
    assert arm.tensor_bytes == 4 * 512 * SLOT_BYTES
    assert {row.reserved for row in worked_example.rows("contiguous.batch")} == {4 * 512}
    assert worked_example.pool("contiguous.sequential").tensor_bytes == 512 * SLOT_BYTES


def test_the_worked_example_is_what_the_arms_measure(worked_example: Run) -> None:
    batch, paged = worked_example.arm("contiguous.batch").peak, worked_example.arm("paged").peak
    assert batch is not None
    assert paged is not None
    assert (batch.live, batch.padding, batch.unwritten, batch.allocated) == (323, 313, 1412, 2048)
    assert (paged.live, paged.unwritten, paged.allocated) == (323, 29, 352)
    assert paged.allocated / 16 == 22
    assert (batch.witness, paged.witness) == (323 + 313, 323)


def test_a_growing_cache_reserves_what_it_wrote_and_moves_it_again_and_again(
    worked_example: Run,
) -> None:
    for row in worked_example.rows("contiguous.growing"):
        assert row.reserved == row.allocated == row.live
    moved = [move.bytes for move in worked_example.record.of(CacheMoved)]
    prompts = [len(request.token_ids) for request in worked_example.workload.requests]
    expected = [sum(range(p, p + 49)) * SLOT_BYTES for p in prompts]
    assert moved == expected


def test_the_token_of_the_example_lies_where_the_table_says(worked_example: Run) -> None:
    place = worked_example.arm("paged").mapping
    assert place is not None
    assert (place["request"], place["position"]) == (0, 20)
    assert (place["logical"], place["offset"]) == (1, 4)
    step = next(m.step for m in worked_example.record.of(TokenMapping))
    tables: dict[int | None, list[int]] = {}
    for plan in worked_example.plans("paged")[: step + 1]:
        for op in plan.ops:
            tables.setdefault(op.request, []).extend(op.blocks)
    assert tables[0][1] == place["physical"]


def test_a_budget_of_fewer_slabs_runs_in_waves(crowded: Run) -> None:
    pool = crowded.pool("contiguous.batch")
    assert (pool.blocks, pool.tensor_bytes) == (2, 2 * 64 * SLOT_BYTES)
    first_chunks = [
        [c.request for c in plan.chunks]
        for plan in crowded.plans("contiguous.batch")
        if any(c.start == 0 for c in plan.chunks)
    ]
    assert first_chunks == [[0, 1], [2, 3], [4]]


def test_the_paged_arm_preempts_where_the_budget_is_short(crowded: Run) -> None:
    assert crowded.pool("paged").blocks == 33  # 2.1 slabs of 64 slots, in blocks of 4
    assert crowded.arm("paged").preemptions > 0


def test_a_row_that_ended_early_is_finished_memory_until_its_batch_ends(stopping: Run) -> None:
    batch = stopping.rows("contiguous.batch")
    assert max(row.finished for row in batch) > 0
    for arm in ("paged", "contiguous.growing", "contiguous.sequential"):
        rows = [row for row in stopping.rows(arm) if row.running]
        assert max(row.finished for row in rows) == 0


def test_a_stop_token_stops_every_arm_at_the_same_place(stopping: Run, crowded: Run) -> None:
    free = crowded.tokens("contiguous.sequential")
    ends = {free[2][6], free[4][9]}
    for arm in stopping.arms:
        tokens = stopping.tokens(arm)
        for request in (2, 4):
            end = next(place for place, token in enumerate(free[request], 1) if token in ends)
            assert tokens[request] == free[request][:end]
        reasons = {f.request: f.reason for plan in stopping.plans(arm) for f in plan.finished}
        for request, ended in tokens.items():
            assert ends.isdisjoint(ended[:-1])
            stopped = FinishReason.STOP if ended[-1] in ends else FinishReason.LENGTH
            assert reasons[request] is stopped
    assert len(free[2]) == 40 > len(stopping.tokens("paged")[2])


@pytest.mark.parametrize("arm", ["contiguous.batch", "contiguous.growing"])
def test_a_step_after_the_last_request_has_ended_is_not_logged(
    arm: str, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Transformers defers its stop check, the hook is called once more."""
    fitted = with_requests(prepared, ((5, 6), (4, 3)), slabs=2, max_length=64, block_size=8)
    config = make_config("tiny-gpt2", (arm,))

    def plans() -> list[StepPlan]:
        return [e.plan for e in events_of(arm, config, fitted) if isinstance(e, Step)]

    def late(self: Any, **arguments: Any) -> torch.Tensor:
        ids: torch.Tensor = GenerationMixin.generate(self, **arguments)
        for hook in arguments.get("stopping_criteria", ()):
            assert hook(ids, None).tolist() == [True] * len(ids)
        return ids

    expected = plans()
    monkeypatch.setattr(GPT2LMHeadModel, "generate", late)
    assert plans() == expected


def test_slabs_are_the_same_engine_with_fewer_requests_at_a_time(crowded: Run) -> None:
    slabs, paged = crowded.arm("slabs"), crowded.arm("paged")
    assert (slabs.blocks, slabs.block_size) == (2, crowded.workload.max_length)
    assert max(row.running for row in crowded.rows("slabs")) == 2
    assert slabs.mean_running is not None
    assert paged.mean_running is not None
    assert paged.mean_running > 1.3 * slabs.mean_running
    assert slabs.mapping is None
    first = [arm.model_copy(update={"second_part": None}) for arm in (slabs, paged)]
    claim = throughput(crowded.results.model_copy(update={"arms": first}))
    assert claim.text.params["slabs_running"] == slabs.mean_running


def test_a_growing_cache_is_compared_at_its_largest_whenever_that_was(many: Run) -> None:
    """The longest request comes after those at which every channel is read."""
    found = many.arm("contiguous.growing").reconciliation
    assert found is not None
    assert max(len(r.token_ids) for r in many.workload.requests[:16]) < 40
    assert found.expected_bytes == 40 * SLOT_BYTES
    assert {row.channel: row.bytes for row in found.rows}["tensors"] == 40 * SLOT_BYTES
    assert found.agree is True


def weights(run: Run) -> dict[str, int]:
    """Bytes of weights by arm, when they are loaded."""
    readings = [r for r in run.record.of(Reading) if r.channel is Channel.WEIGHTS]
    return {reading.arm: reading.bytes or 0 for reading in readings}


def test_weights_as_they_are_loaded_are_of_one_size_in_every_arm(crowded: Run) -> None:
    found = weights(crowded)
    assert set(found) == set(crowded.arms)
    assert len(set(found.values())) == 1


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is without oneDNN")
def test_packed_weights_are_the_same_and_the_filling_of_their_panels(worked_example: Run) -> None:
    """None is held twice: the embedding table alone is most of this model."""
    found = weights(worked_example)
    assert found["contiguous.batch"] < found["paged"]
    assert found["paged"] < 1.02 * found["contiguous.batch"]


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is without oneDNN")
@pytest.mark.parametrize("packs", [True, False])
def test_replaced_layers_are_named_by_what_the_arm_did(
    packs: bool, worked_example: Run, crowded: Run, prepared: Prepared
) -> None:
    results = (worked_example if packs else crowded).results
    (products,) = [text for text in results.differences if text.key.startswith("differs.products")]
    if packs:
        plain = load_model(prepared.directory, "float32", "cpu", "sdpa")
        layers = [m for m in plain.modules() if type(m) in (torch.nn.Linear, Conv1D)]
        assert products.key == "differs.products_and_gelus"
        assert (products.params["layers"], products.params["embeddings"]) == (len(layers), 1)
        assert products.params["bytes"] >= 4 * sum(m.weight.numel() for m in layers)
    else:
        assert products.key == "differs.products_same"
    _, *above = results.gains
    ours = next(gain for gain in above if gain.arm in ("slabs", "paged"))
    assert ours.products_differ is packs


def test_weights_that_are_no_numbers_are_refused_before_anything_is_reserved(
    tmp_path: Path, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(prepared.directory, damaged)
    [path] = damaged.glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("h.1.mlp.c_proj.weight"))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    model = Prepared(str(damaged), prepared.model, prepared.workload)
    monkeypatch.delattr(ArmRun, "pool_reserved")
    with pytest.raises(UserError) as refused:
        events_of("paged", make_config("tiny-gpt2", ["paged"]), model)
    assert (refused.value.text.key, refused.value.exit_code) == (
        "error.model_logits", ExitCode.USAGE,
    )  # fmt: skip
    for lang in LANGUAGES:
        assert "float32" in Translator(lang).message(refused.value.text)


MIB = 1 << 20
ARM = "contiguous.batch"


@pytest.fixture(scope="module")
def alone(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A cache of 96 MiB, in a process of its own.

    Its tensors are large enough for the C library to keep what they cost.
    """
    place = tmp_path_factory.mktemp("counted")
    config = Config.model_validate(
        {
            "model": {"name": "tiny-gpt2"},
            "workload": {"max_new_tokens": 1},
            "cache": {"max_length": 1024, "budget": 96 * MIB},
            "run": {"arms": [ARM], "device": "cpu", "threads": 1},
        }
    )
    prepared = prepare_here(config, prompts=["Hello"] * 96)
    return run_arms(place / "run", environment, config, prepared)


def test_a_process_is_read_at_each_stage(alone: Run) -> None:
    readings = [r for r in alone.readings(ARM) if r.channel is Channel.RSS]
    assert {*Stage} <= {reading.stage for reading in readings if reading.bytes}


@pytest.mark.skipif(sys.platform != "linux", reason="trims as glibc does")
def test_the_process_grows_by_the_cache_and_by_nothing_that_counting_took(
    alone: Run,
) -> None:
    found = alone.arm(ARM).reconciliation
    assert found is not None
    assert found.expected_bytes == 96 * MIB
    seen = {row.channel: row.bytes for row in found.rows if row.bytes is not None}
    assert seen["poison"] == 96 * MIB
    # Not USS: it becomes less where another program begins to share a library with this one.
    assert abs(seen["process.rss"] - 96 * MIB) < 2 * MIB, seen


@pytest.mark.parametrize(
    ("name", "arm"), [("worked_example", "paged"), ("crowded", "paged"), ("crowded", "slabs")]
)
def test_the_simulator_plans_what_the_engine_did(
    request: pytest.FixtureRequest, name: str, arm: str
) -> None:
    run: Run = request.getfixturevalue(name)
    found = run.arm(arm).simulator
    assert found is not None
    assert (found.agrees, found.equal_steps) == (True, len(run.plans(arm)))
