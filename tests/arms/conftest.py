"""Runs that several tests look at; each is made once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from arm_runs import Run, make_config, run_arms_here, with_requests
from arms_here import prepare_here

from experiment.config.arms import ARM_GROUPS
from experiment.config.schema import Config
from experiment.workload.prepared import Prepared
from experiment.workload.requests import DEFAULT_PROMPTS

CONTIGUOUS, PAGED = ARM_GROUPS["contiguous"], ARM_GROUPS["paged"]
# Side by side in one batch they need 20 + 40 - 1 slots a row; all paged ones need 35 of 32 blocks.
UNEVEN = ((15, 34), (20, 3), (4, 40), (13, 1), (16, 40))
LENGTH = 64


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def everything() -> Config:
    return make_config("tiny-gpt2", (*CONTIGUOUS, *PAGED))


@pytest.fixture(scope="session")
def prepared(everything: Config, model_cache: Path) -> Prepared:
    return prepare_here(everything, prompts=list(DEFAULT_PROMPTS))


@pytest.fixture(scope="session")
def worked_example(runs: Path, everything: Config, prepared: Prepared) -> Run:
    """Every arm on the four prompts, 50 new tokens each, maximum length 512."""
    return run_arms_here(runs / "worked", everything, prepared)


@pytest.fixture(scope="session")
def crowded(runs: Path, prepared: Prepared) -> Run:
    """Five uneven requests in a budget of two slabs and a bit; weights stay as they are loaded."""
    names = ("contiguous.sequential", "contiguous.batch", "slabs", "paged")
    config = make_config("tiny-gpt2", names)
    engine = config.engine.model_copy(update={"packed_weights": False})
    config = config.model_copy(update={"engine": engine})
    fitted = with_requests(prepared, UNEVEN, slabs=2.1, max_length=LENGTH, block_size=4)
    return run_arms_here(runs / "crowded", config, fitted)


@pytest.fixture(scope="session")
def stopping(runs: Path, prepared: Prepared, crowded: Run) -> Run:
    """The same requests with room for all, and two end tokens that two of them generate.

    The model's files ask for other tokens than the likeliest, as those of chat models do.
    """
    config = make_config("tiny-gpt2", (*CONTIGUOUS, *PAGED), ignore_eos=False)
    free = crowded.tokens("contiguous.sequential")
    model = prepared.model.model_copy(update={"eos_token_id": (free[2][6], free[4][9])})
    fitted = with_requests(prepared, UNEVEN, slabs=5, max_length=LENGTH, block_size=4)
    directory = shutil.copytree(fitted.directory, runs / "chat")
    asked = {"suppress_tokens": [tokens[0] for tokens in free.values()]}
    (directory / "generation_config.json").write_text(json.dumps(asked), encoding="utf-8")
    fitted = Prepared(str(directory), model, fitted.workload)
    return run_arms_here(runs / "stopping", config, fitted)


@pytest.fixture(scope="session")
def llama(runs: Path, model_cache: Path) -> Run:
    """Grouped heads and rotary positions."""
    config = make_config("tiny-llama", ("contiguous.batch", "paged"), max_new_tokens=12)
    prepared = prepare_here(config, prompts=["A short one", "One that is longer " * 5])
    return run_arms_here(runs / "llama", config, prepared)


@pytest.fixture(scope="session")
def many(runs: Path, prepared: Prepared) -> Run:
    """More requests than are marked one by one, the longest last."""
    config = make_config("tiny-gpt2", ("contiguous.growing",))
    uneven = [(5, 2)] * 16 + [(38, 3)]
    fitted = with_requests(prepared, uneven, slabs=4, max_length=LENGTH, block_size=4)
    return run_arms_here(runs / "many", config, fitted)
