"""The preparing child as the runner starts it: a real process, JSON lines in and out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from arms_here import Gathered

from experiment.children import prepare as children_prepare
from experiment.children.prepare import check_arms
from experiment.config.schema import Config
from experiment.events import (
    Event,
    ModelDirectory,
    ModelPrepared,
    Notice,
    Progress,
    WorkloadReady,
    decode,
)
from experiment.model.builtin import build_model
from experiment.model.facts import slow_on_cpu
from experiment.model.load import load_model, load_tokenizer
from experiment.text import LANGUAGES, Translator
from experiment.text.errors import UserError
from experiment.text.messages import Message
from experiment.workload.requests import DEFAULT_PROMPTS
from kvsim.base.files import file_sha256


def prepare(cache: Path, config: dict[str, Any], **task: Any) -> tuple[int, list[Event]]:
    """Run the child. Returns its exit code and what it emitted."""
    filled = {
        "config": Config.model_validate(config).model_dump(mode="json"),
        "device": "cpu",
        "prompts": list(DEFAULT_PROMPTS),
        "arms": ["contiguous", "paged"],
        **task,
    }
    environ = {**os.environ, "PAGEDKV_CACHE": str(cache), "HF_HUB_CACHE": str(cache / "hf")}
    environ |= {"HF_ENDPOINT": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    child = subprocess.run(
        [sys.executable, "-m", "experiment.children.prepare"],
        input=json.dumps(filled) + "\n",
        capture_output=True,
        encoding="utf-8",
        env=environ,
        timeout=120,
        check=False,
    )
    events = [decode(line) for line in child.stdout.splitlines()]
    assert "Traceback" not in child.stderr
    _assert_renders(events)
    return child.returncode, events


def refused(config: dict[str, Any], **task: Any) -> str:
    """Why a task is refused, said within this process."""
    given = {"device": "cpu", "prompts": list(DEFAULT_PROMPTS), "arms": ["contiguous", "paged"]}
    told = Config.model_validate(config).model_dump(mode="json")
    with pytest.raises(UserError) as caught:
        children_prepare.main(Gathered(), given | {"config": told} | task)  # type: ignore[arg-type]
    assert all(Translator(lang).message(caught.value.text) for lang in LANGUAGES)
    return caught.value.text.key


def _assert_renders(events: list[Event]) -> None:
    for event in events:
        for text in (getattr(event, name, None) for name in ("text", "task", "reason")):
            if isinstance(text, Message):
                assert all(Translator(lang).message(text) for lang in LANGUAGES)


def test_a_tiny_model_is_prepared(tmp_path: Path) -> None:
    code, events = prepare(tmp_path, {"model": {"name": "tiny-gpt2"}, "run": {"seed": 3}})
    assert code == 0
    lasting = [event for event in events if not isinstance(event, Progress)]
    model, directory, workload = lasting
    assert isinstance(model, ModelPrepared)
    assert isinstance(directory, ModelDirectory)
    assert model.config_sha256 == file_sha256(Path(directory.path, "config.json"))
    assert isinstance(workload, WorkloadReady)
    assert (model.source, model.dtype, model.element_bytes) == ("random", "float32", 4)
    assert (model.layers, model.kv_heads, model.head_dim, model.slot_bytes) == (2, 4, 16, 1024)
    assert (model.random_seed, model.random_init_range, model.eos_token_id) == (3, 0.08, 50256)
    assert [note.key for note in model.notes] == ["model.random_text"]
    assert [len(request.token_ids) for request in workload.requests] == [2, 13, 110, 2]
    assert workload.budget_bytes == 4 * 512 * 1024
    loaded = load_model(directory.path, model.dtype, "cpu", "sdpa")
    assert sum(parameter.numel() for parameter in loaded.parameters()) == model.parameters
    assert load_tokenizer(directory.path)("Hello!")["input_ids"] == [15496, 0]
    assert "prepare.build" in {e.task.key for e in events if isinstance(e, Progress)}


def test_a_local_model_with_grouped_heads_in_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path))
    local = shutil.copytree(build_model("tiny-qwen2", 0, 0.08), tmp_path / "mine")
    config = {"model": {"name": str(local)}, "cache": {"max_length": 4096}}
    code, events = prepare(tmp_path, config, device="cuda")
    assert code == 0
    model = next(event for event in events if isinstance(event, ModelPrepared))
    assert (model.source, model.dtype, model.kv_heads) == ("local", "float16", 2)
    assert (model.slot_bytes, model.max_positions) == (2 * 2 * 2 * 16 * 2, 4096)
    assert (model.random_seed, model.notes) == (None, [])
    assert "prepare.digest" in {e.task.key for e in events if isinstance(e, Progress)}
    assert not [event for event in events if isinstance(event, Notice)]


def test_damaged_local_weights_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path))
    local = shutil.copytree(build_model("tiny-gpt2", 0, 0.08), tmp_path / "mine")
    os.truncate(local / "model.safetensors", 5000)
    assert refused({"model": {"name": str(local)}}) == "error.model.unreadable"


@pytest.mark.parametrize(
    ("config", "task", "key"),
    [
        ({"model": {"name": "tiny-gpt2"}}, {"prompts": []}, "error.workload.no_prompts"),
        (
            {"model": {"name": "tiny-gpt2"}, "cache": {"max_length": 2000}},
            {},
            "error.model.too_long",
        ),
        (
            {"model": {"name": "tiny-gpt2"}, "cache": {"max_length": 100}},
            {},
            "error.workload.too_long",
        ),
        (
            {"model": {"name": "tiny-gpt2"}, "cache": {"budget": 1024}},
            {"arms": ["paged"]},
            "error.workload.no_blocks",
        ),
    ],
)
def test_what_a_person_can_mend(config: dict[str, Any], task: dict[str, Any], key: str) -> None:
    assert refused(config, **task) == key


@pytest.mark.parametrize("arm", ["contiguous.batch", "contiguous.compiled", "transformers_paged"])
def test_who_serves_in_order_of_arrival_is_refused_where_priorities_decide(arm: str) -> None:
    def given(policy: str, *priorities: int) -> Config:
        workload = {"prompts": ["a"] * len(priorities), "priorities": list(priorities)}
        return Config.model_validate({"workload": workload, "engine": {"policy": policy}})

    with pytest.raises(UserError) as refused:
        check_arms(given("priority", 1, 0), [arm], "cpu")
    assert refused.value.text.key == "error.workload.in_order"
    for harmless in (given("fcfs", 1, 0), given("priority", 1, 1), given("priority")):
        check_arms(harmless, [arm], "cpu")
    for each in ("slabs", "paged", "vllm"):
        check_arms(given("priority", 1, 0), [each], "cpu")


def test_slow_precision_is_told_from_the_flags_of_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n", encoding="utf-8")
    assert not slow_on_cpu("bfloat16", cpuinfo)
    assert slow_on_cpu("float16", cpuinfo)
    assert not slow_on_cpu("float32", cpuinfo)
    cpuinfo.write_text("Features\t: fp asimd asimdhp\n", encoding="utf-8")
    assert slow_on_cpu("bfloat16", cpuinfo)
    assert not slow_on_cpu("float16", cpuinfo)
    assert not slow_on_cpu("bfloat16", tmp_path / "absent")
