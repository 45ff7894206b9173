"""A model that returns no numbers ends its arm with one clear line, before a cache is there."""

from __future__ import annotations

import shutil
from pathlib import Path

from arm_runs import make_config, run_arms
from safetensors.torch import load_file, save_file

from experiment.events import ArmFailed, PoolReserved
from experiment.machine.environment import Environment
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import ExitCode
from experiment.workload.prepared import Prepared


def test_weights_that_are_no_numbers(
    tmp_path: Path, environment: Environment, prepared: Prepared
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(prepared.directory, damaged)
    [path] = damaged.glob("*.safetensors")
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("h.1.mlp.c_proj.weight"))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    model = Prepared(str(damaged), prepared.model, prepared.workload)
    run = run_arms(tmp_path / "run", environment, make_config("tiny-gpt2", ["paged"]), model)
    [failed] = run.record.of(ArmFailed)
    assert (failed.reason.key, failed.exit_code) == ("error.model_logits", ExitCode.USAGE)
    for lang in LANGUAGES:
        assert "float32" in Translator(lang).message(failed.reason)
    assert run.record.of(PoolReserved) == []
