"""The machine, and whether it has vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from experiment.arms.launch import find_vllm
from experiment.text.messages import Message


@pytest.fixture(scope="session")
def real_vllm() -> str:
    """Interpreter of `make vllm`. PAGEDKV_NEED_VLLM: its absence is a failure, as in CI."""
    found = find_vllm()
    if isinstance(found, Message):
        if os.environ.get("PAGEDKV_NEED_VLLM"):
            pytest.fail("vLLM is not there: run make vllm")
        pytest.skip("vLLM is not there: run make vllm")
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run"
