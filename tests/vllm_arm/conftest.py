"""The machine, and whether it has vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiment.config import Config
from experiment.environment import Environment
from experiment.launch import find_vllm
from experiment.messages import Message
from experiment.record import EventLog
from experiment.runner import Session


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("probe")
    with EventLog(directory) as log:
        found = Session(directory, log, lambda event: None).probe_environment("cpu")
    assert isinstance(found, Environment)
    return found


@pytest.fixture(scope="session")
def real_vllm() -> str:
    """Interpreter of `make vllm`. PAGEDKV_NEED_VLLM: its absence is a failure, as in CI."""
    found = find_vllm(Config())
    if isinstance(found, Message):
        if os.environ.get("PAGEDKV_NEED_VLLM"):
            pytest.fail("vLLM is not there: run make vllm")
        pytest.skip("vLLM is not there: run make vllm")
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run"
