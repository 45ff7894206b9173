"""vLLM itself on a tiny random model: `make vllm` first, then `make vllm-test`."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
from pathlib import Path

import psutil
import pytest
from arms_here import prepare_here
from real_parts import run_arms
from sweeps import full
from vllm_runs import BLOCK, config, result, tiny_model

from experiment.analysis.conclusions import evaluate
from experiment.events import (
    ArmFinished,
    EngineStep,
    Event,
    PoolReserved,
    Reading,
    RequestFinished,
    Stage,
    Step,
    WorkloadRequest,
)
from experiment.machine.environment import Environment
from experiment.process.process_tree import descendants
from experiment.record.log import Record
from experiment.replay.arm_events import split_by_arm
from experiment.replay.timeline import timeline
from experiment.workload.prepared import Prepared
from kvsim.accounting.ledger import SlotState

pytestmark = pytest.mark.vllm

LENGTH = 128
# (prompt, new tokens): 4 blocks each at their ends where 7 are to be had.
CROWDED = ((60, 60), (50, 70), (33, 64), (5, 3))
# The first 64 tokens are the same. Two come at once, one when the first has ended, and three when
# nobody has been there for long, of which the last one is the most urgent.
LATER = ((70, 4), (70, 8), (64, 3), (50, 5), (20, 4), (21, 3))
PLACES = ((0.0, 1), (0.0, 0), (5.0, 1), (40.0, 1), (40.0, 1), (40.0, 0))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def prepared(model: Path, model_cache: Path) -> Prepared:
    given = config(model={"name": str(model)}, cache={"max_length": LENGTH, "block_size": BLOCK})
    return prepare_here(given, prompts=["Hello"])


def with_requests(
    prepared: Prepared, lengths: tuple[tuple[int, int], ...], blocks: int, alike: int = 0
) -> Prepared:
    """Requests whose first ``alike`` tokens are the same, in a budget of some blocks."""
    requests = [
        WorkloadRequest(
            id=index,
            prompt=f"number {index}",
            token_ids=[
                (7919 * (1 if i < alike else index + 2) + 104729 * i) % 50000 for i in range(prompt)
            ],
            max_new_tokens=new,
        )
        for index, (prompt, new) in enumerate(lengths)
    ]
    changed = {"requests": requests, "budget_bytes": blocks * BLOCK * prepared.model.slot_bytes}
    workload = prepared.workload.model_copy(update=changed)
    return Prepared(prepared.directory, prepared.model, workload)


@pytest.fixture(scope="session")
def crowded(
    real_vllm: str,
    prepared: Prepared,
    environment: Environment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Record:
    """A pool of eight blocks, so that vLLM preempts; our engine has one block more than it.

    One block is kept from those who wait.
    """
    given = config(
        ("paged", "vllm"),
        cache={"block_size": BLOCK, "watermark_blocks": 1},
    )
    directory = tmp_path_factory.mktemp("crowded") / "run"
    with tempfile.TemporaryDirectory(prefix="tmp-") as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", made)  # its path is short: sockets fit into it
        record = run_arms(directory, given, environment, with_requests(prepared, CROWDED, 8))
        assert list(Path(made).iterdir()) == [], "vLLM leaves a socket for each of its queues"
    return record


def test_its_steps_take_no_more_than_its_clock_though_its_scheduler_is_watched(
    crowded: Record,
) -> None:
    steps = [s for s in crowded.of(Step) if s.arm == "vllm" and s.plan.chunks]
    busy = sum(step.t_ns - step.started_ns for step in steps) / 1e9
    whole = next(e.generate_s for e in crowded.of(ArmFinished) if e.arm == "vllm")
    assert 0.5 * whole < busy <= whole


def test_it_generates_the_tokens_of_the_other_arms(crowded: Record) -> None:
    arm = result(crowded)
    assert (arm.status, arm.problems) == ("finished", []), arm.reason
    assert len(arm.requests) == len(CROWDED)
    assert all(comparison.equal for comparison in evaluate(crowded).tokens)
    texts = {one.request: one.text for one in result(crowded, "paged").requests}
    assert {one.request: one.text for one in arm.requests} == texts


def test_the_pool_is_the_budget_and_its_bytes_are_the_workers(crowded: Record) -> None:
    arm, paged = result(crowded), result(crowded, "paged")
    assert (arm.blocks, arm.block_size) == (8, BLOCK)
    assert arm.tensor_bytes == paged.tensor_bytes == arm.budget_bytes
    assert arm.engine is not None
    assert arm.engine.rank_bytes == [arm.budget_bytes]


def test_it_says_what_was_foretold(crowded: Record) -> None:
    engine = result(crowded).engine
    assert engine is not None
    assert (engine.tokens, engine.max_concurrency) == (256, 2.0)
    assert (engine.foretold_tokens, engine.foretold_concurrency) == (256, 2.0)


def test_states_of_the_pool_sum_to_it_at_every_step_and_the_null_block_is_its_own(
    crowded: Record,
) -> None:
    arm = result(crowded)
    assert arm.peak is not None
    events = next(events for events in split_by_arm(crowded) if events.arm == "vllm")
    found, problem = timeline(events)
    assert problem is None
    for row in found:
        assert sum(getattr(row, state.value) for state in SlotState) == row.reserved == 8 * BLOCK
        assert row.engine == BLOCK
    assert max(row.live for row in found) > 3 * BLOCK
    assert (found[-1].allocated, found[-1].live) == (0, 0)


def test_it_preempts_and_says_so_itself(crowded: Record) -> None:
    arm = result(crowded)
    assert arm.engine is not None
    assert arm.preemptions == arm.engine.preempted > 0


def test_both_hold_back_what_the_config_says(crowded: Record) -> None:
    pools = {pool.arm: pool.watermark_blocks for pool in crowded.of(PoolReserved)}
    assert pools == {"paged": 1, "vllm": 1}


def test_its_statistics_are_those_of_its_tables(crowded: Record) -> None:
    steps = crowded.of(EngineStep)
    assert len(steps) == sum(1 for row in crowded.of(Step) if row.arm == "vllm") - 1
    assert {step.used_blocks == step.table_blocks for step in steps} == {True}
    assert max(step.used_blocks for step in steps) == 7
    assert max(step.waiting for step in steps) > 0


def test_the_simulator_holds_as_many_blocks_at_every_step(crowded: Record) -> None:
    found = result(crowded).simulator
    assert found is not None
    assert found.agrees is True, found
    assert found.mean_points is not None
    assert found.mean_points <= 0.1, found
    assert found.steps > 60
    assert max(blocks for _, blocks, _ in found.curve) == found.usable_blocks == 7
    assert found.preempted is not None
    assert found.preempted[0] == result(crowded).preemptions


@full
@pytest.mark.parametrize("seed", range(20))
def test_the_simulator_stands_for_it_whatever_the_workload(
    real_vllm: str, prepared: Prepared, environment: Environment, directory: Path, seed: int
) -> None:
    """Prompts longer than the token budget among them, and pools that are too small."""
    draw = random.Random(seed)
    lengths = []
    for _ in range(draw.randint(6, 12)):
        prompt = draw.randint(1, 110)
        lengths.append((prompt, draw.randint(1, LENGTH - prompt)))
    tokens = draw.choice([32, 64, 96])
    limits = {
        "max_num_batched_tokens": tokens, "max_num_seqs": draw.choice([4, 16]),
        "prefix_caching": draw.random() < 0.5, "admission": draw.choice(["full", "first_chunk"]),
    }  # fmt: skip
    given = config(engine=limits, vllm={"enforce_eager": True}, cache={"block_size": BLOCK})
    alike = draw.choice([0, 64])
    made = with_requests(prepared, tuple(lengths), draw.randint(5, 9), alike)
    record = run_arms(directory, given, environment, made)
    found = result(record).simulator
    assert found is not None
    assert found.mean_points is not None, found
    assert found.mean_points <= 0.1, found
    assert found.preempted is not None
    assert found.preempted[0] == found.preempted[1] == result(record).preemptions


def test_memory_is_read_from_outside_and_no_counter_is_zero(crowded: Record) -> None:
    readings = [reading for reading in crowded.of(Reading) if reading.arm == "vllm"]
    stages = {reading.stage for reading in readings}
    assert stages >= set(Stage)
    torchs = [reading for reading in readings if reading.channel.value.startswith("torch.")]
    assert torchs
    assert all(reading.bytes is None and reading.reason for reading in torchs)


def test_times_and_versions_are_on_record(crowded: Record) -> None:
    engine = result(crowded).engine
    assert engine is not None
    assert engine.load_s > 0
    assert engine.first_request_s > 0
    assert {"vllm", "torch", "transformers", "python"} == set(engine.versions)
    assert engine.arguments["kv_cache_memory_bytes"] == result(crowded).budget_bytes
    assert engine.variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


@full
def test_prefixes_are_shared_later_requests_wait_and_urgent_ones_go_first(
    real_vllm: str, prepared: Prepared, environment: Environment, directory: Path
) -> None:
    """By steps; two may run at a time."""
    given = config(engine={"prefix_caching": True, "policy": "priority", "max_num_seqs": 2})
    fitted = with_requests(prepared, LATER, 16, alike=64)
    requests = [
        one.model_copy(update={"arrival": at, "priority": priority})
        for one, (at, priority) in zip(fitted.workload.requests, PLACES, strict=True)
    ]
    workload = fitted.workload.model_copy(update={"requests": requests})
    record = run_arms(
        directory, given, environment, Prepared(fitted.directory, fitted.model, workload)
    )
    arm = result(record)
    assert (arm.status, arm.problems) == ("finished", []), arm.reason
    ended = {e.request: e for e in record.of(RequestFinished)}
    came = {one: e.arrival_step for one, e in ended.items()}
    assert came == {0: 0, 1: 0, 2: 5, 3: 8, 4: 8, 5: 8}
    waited = {one: (e.first_token_step or 0) - (e.arrival_step or 0) for one, e in ended.items()}
    assert waited == {0: 0, 1: 0, 2: 0, 3: 0, 4: 3, 5: 0}
    assert arm.simulator is not None
    assert arm.simulator.mean_points == 0
    # The second request finds two blocks, in the very step in which they are computed. The third
    # has nothing but those tokens, and must compute some: it takes one block, as the fourth.
    assert arm.engine is not None
    assert (arm.engine.prefix_hits, arm.shared_peak) == (128, 2)


@full
def test_a_worker_that_is_killed_leaves_a_row_and_nobody(
    real_vllm: str, prepared: Prepared, environment: Environment, directory: Path
) -> None:
    """The process that holds weights and cache dies in the middle of generating."""
    victims: list[psutil.Process] = []
    ready = threading.Event()

    def listener(event: Event) -> None:
        if isinstance(event, Step) and not ready.is_set():
            ready.set()
            below = descendants(os.getpid())
            victims.extend(process for process in below if "Worker" in process.name())
            victims[0].send_signal(signal.SIGKILL)

    given = config(run={"arm_timeout_s": 120})
    some = with_requests(prepared, ((5, 100), (5, 100)), 16)
    record = run_arms(directory, given, environment, some, listener)
    arm = result(record)
    assert arm.status == "failed"
    assert arm.reason is not None
    # The killed process can say nothing; vLLM may still, before it gives up.
    assert arm.reason.key in ("failure.engine_process", "failure.exception"), arm.reason
    assert "cancelled" not in str(arm.reason.params)
    assert arm.peak is not None  # what was measured before stands
    assert not [p for p in descendants(os.getpid()) if "VLLM" in p.name()]
