"""How idle threads wait: what a child is born with, and who may decide otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from experiment import thread_env
from experiment.bench.waiting import NAMES, POLICIES, waiting_as
from experiment.config import Config
from experiment.launch import Launch
from experiment.runner import _variables
from experiment.thread_env import GIVEN, WAITING, crowded, thread_variables


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
    assert _variables(config, Launch("m", {})).items() >= WAITING.items()
    other = Launch("m", {}, "python", {"OMP_NUM_THREADS": "2"})
    assert _variables(config, other) == {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"}
    assert _variables(None, None) == {}


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
