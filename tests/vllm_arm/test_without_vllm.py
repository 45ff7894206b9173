"""The whole program: without vLLM it ends well, and what cannot be is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiment.cli import main
from experiment.i18n import Translator
from experiment.messages import ExitCode, message

WORDS = ("run", "--yes", "--offline", "--lang", "en", "--model", "tiny-gpt2", "--device", "cpu")


def test_a_run_without_vllm_says_how_to_get_it_and_ends_well(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("experiment.launch.VLLM_ENVIRONMENT", "nowhere")
    assert main([*WORDS, "--arms", "paged,vllm", "--out", str(directory)]) == ExitCode.OK
    assert "make vllm" in " ".join(capsys.readouterr().out.split())
    run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    found = {arm["arm"]: arm["status"] for arm in run["results"]["arms"]}
    assert found == {"paged": "finished", "vllm": "skipped"}
    assert run["config"]["cache"]["block_size"] == 16  # nobody runs who needs another


def test_more_ranks_than_there_are_gpus_are_refused_before_anything_loads(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--arms", "paged,vllm", "--set", "vllm.tensor_parallel_size=8")
    assert main([*words, "--out", str(directory)]) == ExitCode.USAGE
    said = Translator("en").message(message("error.vllm_ranks", ranks=8, gpus=0))
    assert said in capsys.readouterr().err
    assert not directory.exists()
