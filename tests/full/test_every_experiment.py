"""Every experiment for real, on every arm that can run it: `make test-full`.

In quick size, on the models of quick sizes with heads that vLLM has kernels for on a CPU.
PAGEDKV_FULL_SIZE=full takes each file as it is; docs/experiments.md says how long each takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from experiment.arms.launch import find_vllm
from experiment.config.reading import load_config
from experiment.config.schema import Config
from experiment.events import RepeatFinished, Stage, StageEntered
from experiment.experiments.measured import cells_of
from experiment.experiments.registry import EXPERIMENTS
from experiment.model.builtin import RECIPES
from experiment.model.tokenizer import gpt2_tokenizer
from experiment.record.log import read_record
from experiment.text import Translator
from experiment.text.errors import ExitCode
from experiment.text.messages import Message

ROOT = Path(__file__).parent.parent.parent
FULL = {"quick": False, "full": True}[os.environ.get("PAGEDKV_FULL_SIZE", "quick")]
# Twice as wide and half as many: a token takes as many bytes as before.
HEADS = {
    "tiny-gpt2": {"n_head": 2},
    "tiny-qwen2": {"num_attention_heads": 2, "num_key_value_heads": 1},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Directories of these models, by their names."""
    place = tmp_path_factory.mktemp("models")
    for name, heads in HEADS.items():
        shape = RECIPES[name]()
        shape.update({**heads, "initializer_range": 0.08})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
        model.save_pretrained(place / name)
        gpt2_tokenizer().save_pretrained(place / name)
    return {name: str(place / name) for name in HEADS}


@pytest.mark.parametrize("name", list(EXPERIMENTS))
def test_an_experiment_runs_and_its_counts_are_as_predicted(
    name: str, tmp_path: Path, models: dict[str, str]
) -> None:
    out, file = tmp_path / "out", ROOT / "configs" / f"{name}.toml"
    asked = load_config(file, {})
    words = [] if FULL else _quick(file, asked, models)
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_experiment.py"), "--config", str(file), "--yes", "--quiet",
         *words, "--out", str(out)],
        capture_output=True, text=True, encoding="utf-8", errors="replace", env=environment,
        check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == ExitCode.OK, done.stderr
    found = json.loads((out / "run.json").read_text(encoding="utf-8"))["results"]["experiment"]
    assert found["problems"] == []
    assert len(found["cells"]) == found["cells_planned"]
    ran = {arm for cell in found["cells"] for arm in _finished(name, cell, found["repeats"])}
    # In full size a model that vLLM has no kernel for stays as its file names it.
    absent = {"vllm"} if FULL or isinstance(find_vllm(), Message) else set()
    left_out = set(asked.arm_names) - ran
    assert left_out <= absent
    for arm in sorted(left_out):
        warnings.warn(_left_out(name, arm, found["cells"]), stacklevel=1)
    assert _read_while_measured(out) == []


def _left_out(name: str, arm: str, cells: list[dict[str, Any]]) -> pytest.PytestWarning:
    """That an arm ran in no cell, which passes as if it had, and the reasons that the run gave."""
    t = Translator("en")
    reasons = {
        t.message(Message.model_validate(each["reason"]))
        for cell in cells
        for each in cell["arms"]
        if each["arm"] == arm and each["reason"]
    }
    return pytest.PytestWarning(f"{name}: {arm} ran in no cell: {' '.join(sorted(reasons))}")


def _read_while_measured(out: Path) -> list[StageEntered]:
    """Readings of memory after a request of a measured repeat, in any arm: each makes it wait."""
    found = []
    for cell in cells_of(read_record(out)):
        over: set[str] = set()
        for event in cell.events:
            if isinstance(event, RepeatFinished):
                over.add(event.arm)
            elif isinstance(event, StageEntered) and event.stage is Stage.REQUEST_DONE:
                found += [event] if event.arm in over else []
    return found


def _quick(file: Path, asked: Config, models: dict[str, str]) -> list[str]:
    """Options of the quick size, with every arm of the file."""
    words = ["--quick", "--arms", ",".join(asked.arm_names)]
    quick = load_config(file, {"experiment.size": "quick"})
    if quick.model.name in models:
        words += ["--model", models[quick.model.name]]
    if named := quick.experiment.options.get("models"):
        words += ["--set", f"experiment.options.models={json.dumps([models[n] for n in named])}"]
    return words


def _finished(name: str, cell: dict[str, Any], repeats: int) -> set[str]:
    """The arms that ran in a cell; the others say why not."""
    # Of serving what is counted in steps is repeated once.
    once = name == "serving" and cell["values"]["clock"] == "steps"
    ran = set()
    for arm in cell["arms"]:
        if arm["status"] == "skipped":
            assert arm["reason"], arm
            continue
        assert arm["status"] == "finished", arm
        assert arm["repeats"] == (1 if once else repeats)
        ran.add(arm["arm"])
    return ran
