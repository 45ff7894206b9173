"""Counting the slots of an empty cache leaves nothing that is then taken for the cache."""

from __future__ import annotations

import sys

import pytest
from arms_here import prepare_here
from real_parts import run_arms

from experiment.analysis.arm_results import arm_results
from experiment.analysis.results import ArmResult
from experiment.config.schema import Config
from experiment.machine.environment import Environment

MIB = 1 << 20
ARM = "contiguous.batch"


@pytest.fixture(scope="module")
def arm(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> ArmResult:
    """A cache of 96 MiB: its tensors are large enough for the C library to keep what they cost."""
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
    (found,) = arm_results(run_arms(place / "run", config, environment, prepared))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="trims as glibc does")
def test_the_process_grows_by_the_cache_and_by_nothing_that_counting_took(
    arm: ArmResult,
) -> None:
    found = arm.reconciliation
    assert found is not None
    assert found.expected_bytes == 96 * MIB
    seen = {row.channel: row.bytes for row in found.rows if row.bytes is not None}
    assert seen["poison"] == 96 * MIB
    # Not USS: it becomes less where another program begins to share a library with this one.
    assert abs(seen["process.rss"] - 96 * MIB) < 2 * MIB, seen
