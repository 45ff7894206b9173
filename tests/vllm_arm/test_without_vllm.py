"""The whole program: without vLLM it ends well, and what cannot be is refused at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm_runs import pretender

from experiment.arms.launch import VLLM_PYTHON
from experiment.commands.main import main
from experiment.text import Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import message

WORDS = ("run", "--yes", "--offline", "--lang", "en", "--model", "tiny-gpt2", "--device", "cpu")


def test_a_vllm_that_is_skipped_changes_nothing_for_the_others(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attention on the CPU is not compiled for tiny-gpt2's heads of 16."""
    python = str(pretender(tmp_path / "python", ""))
    monkeypatch.setenv(VLLM_PYTHON, "")  # put back at the end
    words = (*WORDS, "--max-new-tokens", "2", "--prompt", "Hello", "--max-length", "512")
    arms = ("--arms", "paged,vllm", "--vllm-python", python, "--out", str(directory))
    assert main([*words, *arms]) == ExitCode.OK
    run = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    paged, vllm = run["results"]["arms"]
    assert vllm["reason"]["key"] == "skip.vllm_head_size"
    assert (paged["block_size"], run["config"]["cache"]["block_size"]) == (16, 16)
    assert paged["budget_bytes"] == 512 * paged["slot_bytes"]  # no room for a null block
    assert "note.block_size_everywhere" not in {note["key"] for note in run["results"]["notes"]}


def test_more_ranks_than_there_are_gpus_are_refused_before_anything_loads(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--arms", "paged,vllm", "--set", "vllm.tensor_parallel_size=8")
    assert main([*words, "--out", str(directory)]) == ExitCode.USAGE
    said = Translator("en").message(message("error.vllm_ranks", ranks=8, gpus=0))
    assert said in capsys.readouterr().err
    assert not directory.exists()
