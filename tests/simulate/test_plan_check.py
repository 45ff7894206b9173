"""``plan --check``: an installed vLLM confirms the layout, or what differs is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sim_runs import Planned
from sweeps import full

from experiment.arms.launch import VLLM_PYTHON
from experiment.report.facts.plan import rests_on
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text.errors import ExitCode
from kvsim.sizing.layout import LayerCache, Layout, lay_out
from kvsim.sizing.models import find_model
from kvsim.sizing.overhead import encoder_cache

GIB = 1 << 30
LLAMA = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--context", "4096")
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 32_000, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip
Checked = Callable[..., tuple[dict[str, Any], list[str]]]


@pytest.fixture
def checked(planned: Callable[..., Planned]) -> Checked:
    """Run ``plan --check``; return what is found and the lines of the answer."""

    def run(*words: str, code: int = ExitCode.OK) -> tuple[dict[str, Any], list[str]]:
        found = planned(*words, "--check", code=code)
        assert len(found.lines) <= 15
        return found.data["check"], found.lines

    return run


@pytest.fixture
def use_vllm(real_vllm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VLLM_PYTHON, real_vllm)


def model_directory(path: Path, **fields: Any) -> str:
    (path / "config.json").write_text(json.dumps(CONFIG | fields), encoding="utf-8")
    return str(path)


@pytest.mark.usefixtures("use_vllm")
@pytest.mark.parametrize(
    ("words", "groups"),
    [
        (
            ("--model", "gemma-3-27b", "--gpu", "h100", "--gpus", "2", "--kv-dtype", "fp8",
             "--max-length", "32768", "--no-async-scheduling", "--no-enable-prefix-caching"), 7,
        ),
        pytest.param(
            ("--model", "qwen3-next-80b-a3b", "--gpu", "h200", "--gpus", "2", "--max-length",
             "8192", "--dtype", "float16", "--block-size", "32"), 4, marks=full,
        ),
    ],
)  # fmt: skip
def test_vllm_says_the_same(words: Sequence[str], groups: int, checked: Checked) -> None:
    check, lines = checked(*words)
    assert check["verdict"] == "same"
    figures = {name: both["plan"] for name, both in check["figures"].items()}
    assert figures == {name: both["vllm"] for name, both in check["figures"].items()}
    assert len(figures["groups"]) == groups
    assert figures["tokens"] > figures["blocks"]
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("use_vllm")
def test_a_layout_that_lacks_a_layer_is_found(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(caches: Sequence[LayerCache], _: object) -> Layout:
        return lay_out(caches[1:])

    monkeypatch.setattr("kvsim.planning.plan.lay_out", lacking)
    check, lines = checked(*LLAMA, code=ExitCode.INCOMPLETE)
    assert check["verdict"] == "different"
    assert check["figures"]["groups"] == {"plan": [31], "vllm": [32]}
    blocks = check["figures"]["blocks"]
    assert blocks["plan"] > blocks["vllm"]
    (line,) = [one for one in lines if one.startswith("Blocks")]
    assert all(f"{blocks[side]:,}" in line for side in blocks)


@full
@pytest.mark.usefixtures("use_vllm")
def test_a_cache_too_small_to_start_is_too_small_for_vllm(checked: Checked) -> None:
    words = ("--model", "llama-3.1-8b", "--gpu", "rtx-4090", "--kv-budget", "4GiB")
    check, _ = checked(*words, "--max-length", "32768")  # no room for the null block
    assert check["figures"] == {"starts": {"plan": False, "vllm": False}}


@pytest.mark.usefixtures("use_vllm")
def test_a_config_runs_no_code(checked: Checked, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    named = {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
             "_attn_implementation": "evil/kernel", "quantization_config": {"quant_method": "evil"},
             "_name_or_path": str(tmp_path)}  # fmt: skip
    directory = model_directory(tmp_path, **named)
    check, _ = checked("--model", directory, "--weights", "1GiB", *LLAMA[2:])
    assert check["verdict"] == "same"
    assert not ran.exists()


@full
@pytest.mark.usefixtures("use_vllm")
def test_what_vllm_cannot_build_is_said_in_a_line(checked: Checked, tmp_path: Path) -> None:
    directory = model_directory(tmp_path, architectures=["NoSuchForCausalLM"], model_type="none")
    words = ("--model", directory, "--weights", "1GiB", *LLAMA[2:])
    check, _ = checked(*words, code=ExitCode.INCOMPLETE)
    assert check["verdict"] == "unknown"
    assert check["reason"]["key"] == "plan.check.not_built"


@full
def test_the_cache_of_an_encoder_has_vllms_budget(real_vllm: str) -> None:
    script = """if True:
        from types import SimpleNamespace
        from vllm.v1.core.encoder_cache_manager import compute_mm_encoder_budget
        size = 8192
        config = SimpleNamespace(
            disable_chunked_mm_input=False, max_num_batched_tokens=size,
            max_num_encoder_input_tokens=size, encoder_cache_size=size,
        )
        print([min(compute_mm_encoder_budget(config, {"image": item})) for item in (256, 16_384)])
    """
    found = subprocess.run(
        [real_vllm, "-c", script], check=True, capture_output=True, encoding="utf-8", timeout=120
    )
    budget, of_large_items = json.loads(found.stdout.splitlines()[-1])
    model = find_model("gemma-3-27b")  # 256 tokens an image
    assert encoder_cache(model, 8192) == budget * 5376 * 2 < of_large_items * 5376 * 2


def test_without_encoders_more_is_left_and_vllm_is_told(planned: Callable[..., Planned]) -> None:
    words = ("--model", "gemma-3-27b", "--gpu", "h100", "--context", "8192")
    found = [planned(*words, *more).data["plan"] for more in ((), ("--language-model-only",))]
    (whole, text) = found
    assert whole["budget"]["kv"] < text["budget"]["kv"]
    assert whole["budget"]["low"] < text["budget"]["low"]
    assert "--language-model-only" in text["vllm_args"]
    # What is sure of the encoder is its cache.
    least = [each["budget"]["parts"]["activations"][0] for each in found]
    assert least[0] - least[1] == encoder_cache(find_model("gemma-3-27b"), 8192)


def test_without_vllm_the_answer_says_what_to_do(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VLLM_PYTHON, "")  # restored afterwards
    words = (*LLAMA, "--vllm-python", str(tmp_path / "none"))
    check, lines = checked(*words, code=ExitCode.INCOMPLETE)
    assert check["verdict"] == "unknown"
    assert check["reason"]["params"]["path"] == str(tmp_path / "none")
    assert "make vllm" in " ".join(lines)


def test_an_interpreter_is_named_for_a_check_alone(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VLLM_PYTHON, "")  # restored afterwards
    assert "--check" in refused("plan", *LLAMA, "--vllm-python", "python")


def test_an_answer_names_what_its_memory_rests_on() -> None:
    given = [Memory(), Memory(overhead=GIB), Memory(budget=4 * GIB)]
    plans = [plan("llama-3.1-8b", "rtx-4090", memory=memory, context=4096) for memory in given]
    bases = [str(rests_on(data)) for data in [*plans, {**plans[2], "log": {}}]]
    assert len(set(bases)) == 4
