"""The contiguous baseline of plan, simulate and sweep, and the default maximum length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sim_runs import MODEL, simulated

from experiment.commands.main import main
from experiment.text import LANGUAGES
from experiment.text.errors import ExitCode
from kvsim.sizing.models import find_model
from kvsim.traces import PRESETS, Arrivals, Generated, from_preset

# What says that a policy rounds, and that a length is known only afterwards.
ROUNDS = {"en": "power of two", "zh": "二的幂"}
HINDSIGHT = {"en": "known only in hindsight", "zh": "事后才能得知"}
PLAN = ("plan", "--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--prompt-tokens", "725",
        "--new-tokens", "300")  # fmt: skip
DRAWN = ("--trace", "alpaca-like", "--requests", "20")


def flat(text: str) -> str:
    """Without the spaces, at which lines are broken."""
    return "".join(text.split())


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("model", "gpu"),
    [("llama-3.1-8b", "rtx-4090"), ("qwen2.5-0.5b", "t4"), ("opt-13b", "a100-40gb")],
)
def test_the_default_maximum_length_is_the_longest_request_s(
    tmp_path: Path, model: str, gpu: str, preset: str
) -> None:
    words = ("--model", model, "--gpu", gpu, "--trace", preset, "--requests", "20", "--quiet")
    data: dict[str, Any] = simulated(tmp_path / "out", *words)
    positions = find_model(model).max_positions
    drawn = Generated(from_preset(preset, 20, Arrivals(None), max_length=positions))
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


@pytest.mark.parametrize("lang", LANGUAGES)
def test_policies_that_round_say_so_wherever_they_appear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lang: str
) -> None:
    out = str(tmp_path / "sim")
    grid = ("--set", "model=opt-13b", "--set", "gpu=a100-40gb", "--set", "trace=alpaca-like",
            "--set", "requests=3", "--set", 'policy=["slabs", "oracle"]')  # fmt: skip
    runs = (
        (*PLAN,),
        ("simulate", *MODEL, *DRAWN, "--out", out),
        ("sweep", *grid, "--workers", "1", "--out", str(tmp_path / "grid")),
    )
    for words in runs:
        assert main([*words, "--lang", lang]) == ExitCode.OK
        printed = flat(capsys.readouterr().out)
        assert flat(ROUNDS[lang]) in printed, words
        assert "Orca" in printed
        if words[0] != "sweep":
            assert flat(HINDSIGHT[lang]) in printed
    for page in ("sim/report.html", "grid/sweep.html"):
        assert ROUNDS[lang] in (tmp_path / page).read_text(encoding="utf-8")
    assert main(["simulate", *MODEL, *DRAWN, "--policy", "slabs,paged", "--lang", lang,
                 "--out", str(tmp_path / "two")]) == ExitCode.OK  # fmt: skip
    assert "Orca" not in capsys.readouterr().out
