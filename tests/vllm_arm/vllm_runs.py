"""Sessions that run the vLLM arm, in a real interpreter that has it or in one that pretends."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiment.analysis.arm_results import arm_results
from experiment.analysis.results import ArmResult
from experiment.config.schema import Config
from experiment.events import ModelPrepared, WorkloadReady, WorkloadRequest
from experiment.record.log import Record
from experiment.workload.prepared import Prepared

BLOCK = 32
VLLM_ALONE = {"vllm": "0"}


def config(arms: Sequence[str] = ("vllm",), **sections: dict[str, Any]) -> Config:
    """A run on the CPU with one thread; sections are added to it."""
    run = {"arms": list(arms), "device": "cpu", "threads": 1, "arm_timeout_s": 300}
    given = {"cache": {"block_size": BLOCK}, "vllm": {"enforce_eager": True}, **sections}
    return Config.model_validate({**given, "run": {**run, **sections.get("run", {})}})


def result(record: Record, arm: str = "vllm") -> ArmResult:
    return next(one for one in arm_results(record) if one.arm == arm)


def invented(directory: Path, requests: Sequence[tuple[int, int]] = ((3, 2),)) -> Prepared:
    """What is prepared for an arm that never looks at it."""
    model = ModelPrepared(
        name="none", source="random", architecture="GPT2LMHeadModel", parameters=1,
        weights_sha256="0" * 64, dtype="float32", device="cpu", layers=2, kv_heads=2, head_dim=32,
        element_bytes=4, max_positions=128, vocab_size=100, eos_token_id=None,
    )  # fmt: skip
    made = [
        WorkloadRequest(id=i, prompt="p", token_ids=[1] * tokens, max_new_tokens=new)
        for i, (tokens, new) in enumerate(requests)
    ]
    workload = WorkloadReady(
        requests=made, max_length=128, block_size=BLOCK, budget_bytes=8 * BLOCK * model.slot_bytes
    )
    return Prepared(str(directory), model, workload)


def pretender(path: Path, body: str, has: Mapping[str, str] = VLLM_ALONE) -> Path:
    """An interpreter that says it ``has`` vLLM and, asked to run the worker, does ``body``."""
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, subprocess, sys, time\n"
        "if '-c' in sys.argv:\n"
        f"    print({json.dumps([*has.items()])!r})\n"
        "    sys.exit()\n"
        f"{body}\n",
        encoding="utf-8",
    )
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def tiny_model(path: Path) -> Path:
    """GPT-2 of two layers; vLLM's attention on the CPU knows heads of 32 and more."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config

    from experiment.model.tokenizer import gpt2_tokenizer

    shape = GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=256, initializer_range=0.25)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(path)
    gpt2_tokenizer().save_pretrained(path)
    return path
