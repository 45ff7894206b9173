"""The contiguous baseline of plan, simulate and sweep, and the default maximum length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sim_runs import MODEL, simulated

from kvsim.sizing.models import find_model
from kvsim.traces import PRESETS, ArrivalProcess, SyntheticTrace, from_preset

DRAWN = ("--trace", "alpaca-like", "--requests", "20")


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "gpu"), [("llama-3.1-8b", "rtx-4090"), ("opt-13b", "a100-40gb")])
def test_the_default_maximum_length_is_the_longest_request_s(
    tmp_path: Path, model: str, gpu: str, preset: str
) -> None:
    words = ("--model", model, "--gpu", gpu, "--trace", preset, "--requests", "20", "--quiet")
    data: dict[str, Any] = simulated(tmp_path / "out", *words)
    positions = find_model(model).max_positions
    drawn = SyntheticTrace(from_preset(preset, 20, ArrivalProcess(None), max_length=positions))
    longest = max(one.prompt_tokens + one.output_tokens for one in drawn)
    assert data["setup"]["max_length"] == longest
    cells = {cell["policy"]: cell["result"] for cell in data["cells"]}
    assert list(cells) == ["slabs", "max", "pow2", "oracle", "paged"]
    assert cells["slabs"]["block_size"] == cells["max"]["config"]["max_length"] == longest
    slots = data["setup"]["slots"]
    assert cells["slabs"]["pool_slots"] == slots // longest * longest


def test_a_given_maximum_length_is_what_slabs_reserve(tmp_path: Path) -> None:
    data: dict[str, Any] = simulated(tmp_path / "out", *MODEL, *DRAWN, "--max-length", "2048")
    (slabs,) = (cell["result"] for cell in data["cells"] if cell["policy"] == "slabs")
    assert slabs["block_size"] == 2048
    assert slabs["pool_slots"] == 7 * 2048  # of 15,728
