"""How idle threads wait: what a child is born with, and who may decide otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiment.arms.launch import Launch
from experiment.bench.plan import Options, base_config
from experiment.bench.rounds import Ground, RoundResult
from experiment.bench.rows import Row
from experiment.bench.run import Bench
from experiment.bench.waiting import NAMES, POLICIES, waiting_as
from experiment.bench.workloads import TINY, ready
from experiment.config.schema import Config
from experiment.events import ModelPrepared
from experiment.machine import thread_variables as thread_env
from experiment.machine.thread_variables import GIVEN, WAITING, crowded, thread_variables
from experiment.runner.session import _variables
from experiment.workload.prepared import Prepared

GPT2 = ModelPrepared(
    name="gpt2", source="random", architecture="a", parameters=1, weights_sha256="0" * 64,
    dtype="float32", device="cpu", layers=12, kv_heads=12, head_dim=64, element_bytes=4,
    max_positions=1024, vocab_size=50257, eos_token_id=None,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*NAMES, GIVEN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(thread_env, "others_cores", lambda: 1.0)
    crowded.cache_clear()
    yield
    crowded.cache_clear()


@pytest.mark.parametrize(("cores", "bounded"), [(0.0, False), (0.9, True), (None, True)])
def test_spinning_is_bounded_where_other_programs_want_the_cores(
    cores: float | None, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_env, "others_cores", lambda: cores)
    assert (WAITING.items() <= thread_variables(2).items()) is bounded


def test_all_arms_of_a_process_wait_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    first = thread_variables(2)
    monkeypatch.setattr(thread_env, "others_cores", lambda: 0.0)
    assert thread_variables(2) == first


def test_spinning_is_bounded_unless_somebody_has_decided() -> None:
    assert thread_variables(2).items() >= WAITING.items()
    for name in (*WAITING, "OMP_WAIT_POLICY", GIVEN):
        assert not WAITING.keys() & thread_variables(2, {name: "1"}).keys()


def test_arms_of_ours_are_told_how_to_wait_and_vllm_is_not() -> None:
    config = Config.model_validate({"run": {"threads": 2}})
    assert _variables("m", config, Launch("m", {})).items() >= WAITING.items()
    other = Launch("m", {}, "python", {"OMP_NUM_THREADS": "2"})
    assert _variables("m", config, other) == {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    assert _variables("m", None, None) == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_holds_for_the_children_of_its_block_alone(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "mine")
    with waiting_as(POLICIES[policy]):
        # What the process has, and what the runner puts on top for a child.
        born = {**os.environ, **thread_variables(2)}
        assert {name: born[name] for name in NAMES if name in born} == POLICIES[policy]
    assert os.environ["OMP_WAIT_POLICY"] == "mine"
    assert GIVEN not in os.environ


def asked(**changes: Any) -> Options:
    given: dict[str, Any] = {
        "workloads": ("A", "B", "C"), "arms": ("paged", "contiguous.batch"), "named": True,
        "rounds": 2, "least": 1, "limit_s": None, "threads": 1, "tiny": True, "profile": False,
        "waiting": True, "usual": True,
    }  # fmt: skip
    return Options(**{**given, **changes})


def compared(monkeypatch: pytest.MonkeyPatch, options: Options) -> list[tuple[str, str, str, int]]:
    """What the rounds of a comparison are run with; each arm's rate is how many came before it."""
    seen: list[tuple[str, ...]] = []

    def one(directory: Any, ground: Any, config: Any, workload: str, number: int,
            order: list[str], limits: bool) -> RoundResult:  # fmt: skip
        assert not limits
        assert config.run.arms == tuple(order)
        policy = {name: os.environ[name] for name in NAMES if name in os.environ}
        assert policy in POLICIES.values()
        rows = [
            Row(workload=workload, arm=arm, round=number, status="finished",
                useful_tokens_per_s=float(len(seen) + index))
            for index, arm in enumerate(order)
        ]  # fmt: skip
        seen.extend((directory.name, arm) for arm in order)
        return RoundResult(rows=rows)

    monkeypatch.setattr("experiment.bench.run.run_round", one)
    bench = Bench(options, lambda text: None, lambda event: None, lambda row: None)
    prepared = Prepared("none", GPT2, ready(TINY[0], GPT2, 32, 0))
    environment: Any = None
    ground = Ground(environment, prepared, lambda event: None, lambda arm: None)
    bench._compare_waiting(ground, base_config(options, "cpu"))
    rates = [each.useful_tokens_per_s for each in bench.data.waiting]
    assert rates == list(map(float, range(len(seen))))
    return [(w.workload, w.arm, w.policy, w.round) for w in bench.data.waiting]


def test_arms_that_are_named_are_compared_under_every_policy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = compared(monkeypatch, asked(out=tmp_path))
    arms = ("paged", "contiguous.batch")
    assert set(found) == {
        (workload, arm, policy, number)
        for workload in ("A", "B") for arm in arms for policy in POLICIES for number in range(2)
    }  # fmt: skip
    assert len(found) == len(set(found))


def test_without_names_it_is_the_paged_arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = compared(monkeypatch, asked(out=tmp_path, named=False, rounds=1))
    assert {arm for _, arm, _, _ in found} == {"paged"}


def test_workloads_that_are_named_are_those_that_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = compared(monkeypatch, asked(out=tmp_path, workloads=("C",), usual=False, rounds=1))
    assert {workload for workload, *_ in found} == {"C"}
