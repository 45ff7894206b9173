"""A run by a person with secrets, in a directory of others: what it starts, and what it writes.

Its model and directory lie in the person's home, its prompts on a disk whose path has the names of
person and host.
"""

from __future__ import annotations

import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hostile_place import SECRET, Ended, holding, make_hostile, run_in, write_trace

from experiment.commands.main import main
from experiment.model.builtin import build_model
from experiment.text.errors import ExitCode

MARK = "zqmarker"  # no name of a machine, no word of any text
NAMES = (
    "HF_TOKEN", "MY_API_KEY", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD", "A_PAT", "OPENAI_KEY",
    "MINE",
)  # fmt: skip
TOKENS = {name: f"hf_{MARK}{SECRET}{name}" for name in NAMES}


@dataclass(frozen=True)
class Run:
    ended: Ended
    out: Path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    at = tmp_path_factory.mktemp("run")
    home = tmp_path_factory.mktemp("homes") / f"{MARK}home"
    disk = tmp_path_factory.mktemp("scratch") / f"{MARK}user" / f"{MARK}host"
    disk.mkdir(parents=True)
    model = home / "models" / "mine"
    shutil.copytree(build_model("tiny-gpt2", 0, 0.08), model)
    prompts = disk / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hello"}\n{"prompt": "Good day to you"}\n', encoding="utf-8")
    out = home / "runs" / "one"
    words = (
        "--yes", "--quiet", "--offline", "--device", "cpu", "--model", model, "--prompts", prompts,
        "--arms", "paged,vllm", "--max-new-tokens", "4", "--max-length", "64",
        "--set", "engine.kernel=torch", "--out", out,
    )  # fmt: skip
    variables = {
        **TOKENS, "USER": f"{MARK}user", "LOGNAME": f"{MARK}user", "HOSTNAME": f"{MARK}host",
        "HOME": str(home), "HF_ENDPOINT": f"http://user:{SECRET}URL@127.0.0.1:9",
    }  # fmt: skip
    ended = run_in(make_hostile(at), at, words, variables)
    assert ended.code == ExitCode.OK, ended.errors
    return Run(ended, out)


def test_nothing_is_run_from_the_working_directory_and_no_child_has_a_secret(run: Run) -> None:
    """But for the one that asks the hub."""
    assert "\x1b" not in run.ended.errors
    assert run.ended.marks == ""
    ours = [line.split()[2:] for line in run.ended.children if " -m " in line]
    assert {module for module, *_ in ours} > {"experiment.children.prepare", "experiment.arms"}
    assert [words for words in ours if len(words) > 1] == [
        ["experiment.children.prepare", "HF_ENDPOINT", "HF_TOKEN"]
    ]


def test_no_file_of_a_run_names_the_person(run: Run) -> None:
    assert holding(run.out, MARK) == []
    assert holding(run.out, SECRET) == []
    assert "events.jsonl" in holding(run.out, "~/models/mine")
    assert "events.jsonl" in holding(run.out, "/$USER/$HOST")
    if len(name := socket.gethostname()) >= 8:  # a shorter one is found in any text
        assert holding(run.out, name) == []


def test_no_file_of_the_other_commands_names_the_person(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / f"{MARK}home"
    disk = tmp_path / "scratch" / f"{MARK}user"
    for each in (home, disk):
        each.mkdir(parents=True)
    trace = disk / "trace.jsonl"
    write_trace(trace)
    for name, value in {**TOKENS, "USER": f"{MARK}user", "HOME": str(home)}.items():
        monkeypatch.setenv(name, value)
    here = ("--model", "gpt2", "--gpu", "a100-80gb")
    axes = {"trace": str(trace), "policy": "paged", "model": "gpt2", "gpu": "a100-80gb"}
    grid = [word for each in axes.items() for word in ("--set", "{}='{}'".format(*each))]
    for words in (
        ["simulate", "--trace", str(trace), "--unit", "ms", *here, "--policy", "paged"],
        ["sweep", *grid, "--workers", "1"],
        ["compare", str(run.out), str(run.out)],
        ["plan", "--trace", str(trace), "--unit", "ms", *here],
    ):
        words += ["--out", str(home / "out" / words[0])]
        monkeypatch.setattr(sys, "argv", ["pagedkv", *words])
        assert main([*words, "--lang", "en"]) == ExitCode.OK, words
    assert holding(home / "out", MARK) == []
    assert "simulate/sim.json" in holding(home / "out", "scratch/$USER/trace.jsonl")
