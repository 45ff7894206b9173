"""``plan`` and ``simulate`` of a config.json: read as data, and refused in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mini_hub import MiniHub
from safetensors.torch import save_file

from experiment.commands.main import main
from experiment.simulate.names import model_of
from experiment.simulate.plan import plan
from experiment.simulate.setup import Memory
from experiment.text.errors import ExitCode, UserError
from kvsim.sizing.models import find_model

GIB = 1 << 30
LLAMA = dict(find_model("llama-3.1-8b").config)


def written(place: Path, config: Any, name: str = "config.json") -> Path:
    place.mkdir(exist_ok=True)
    path = place / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def weights(path: Path, numbers: int) -> None:
    save_file({"x": torch.zeros(numbers)}, path)


def answer(model: str, memory: Memory, **more: Any) -> dict[str, Any]:
    made = plan(model, "h100", [(500, 300)], memory, max_length=8192, **more)
    return {key: made["plan"][key] for key in ("blocks", "bytes_per_token", "printed")}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "qwen3-next-80b-a3b"])
def test_a_published_config_is_planned_as_its_entry_of_the_catalogue(
    name: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "mine", dict(find_model(name).config))
    memory = Memory(budget=20 * GIB, weights=GIB)
    assert answer(str(path), memory) == answer(str(path.parent), memory) == answer(name, memory)


def test_weights_are_those_beside_the_config(tmp_path: Path) -> None:
    path = written(tmp_path / "mine", LLAMA)
    counted = find_model("llama-3.1-8b").weight_bytes()
    for part in (1, 2):
        weights(path.parent / f"model-0000{part}-of-00003.safetensors", 500)
    assert model_of(str(path)).weight_bytes() == counted  # the third is missing
    third = path.parent / "model-00003-of-00003.safetensors"
    third.write_text("version https://git-lfs.github.com/spec/v1", encoding="utf-8")
    assert model_of(str(path)).weight_bytes() == counted
    weights(third, 500)
    size = third.stat().st_size
    assert model_of(str(path)).weight_bytes() == 3 * size
    assert model_of(str(path), GIB).weight_bytes() == GIB


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "deepseek-v3"])
def test_the_weights_of_a_config_alone_are_counted(name: str, tmp_path: Path) -> None:
    """Published numbers, and what a token uses of the experts; quantised as the config or asked."""
    known = find_model(name)
    same = ("parameters", "expert_parameters", "active_parameters")
    path = written(tmp_path / "mine", dict(known.config) | {"dtype": known.dtype})
    found = model_of(str(path))
    assert [getattr(found, each) for each in same] == [getattr(known, each) for each in same]
    assert found.weight_bytes() == known.weight_bytes()
    # Where the size is given, what experts are of it is still counted.
    assert model_of(str(path), GIB).expert_share == pytest.approx(known.expert_share)
    awq = {"quantization_config": {"quant_method": "awq", "bits": 4}}
    as_published = model_of(str(written(tmp_path / "awq", dict(known.config) | awq)))
    for each in (model_of(str(path), "w4"), as_published):
        assert each.weight_bytes() == known.quantised("w4").weight_bytes()


MIXTRAL = dict(find_model("mixtral-8x7b").config)
UNCOUNTED = [
    LLAMA | {"model_type": "of_mine"}, LLAMA | {"quantization_config": {"bits": 5}},
    LLAMA | {"quantization_config": [1]}, LLAMA | {"vocab_size": "many"},
    LLAMA | {"rope_scaling": [1, 2]}, LLAMA | {"vocab_size": -3},
    *(MIXTRAL | {"num_experts_per_tok": used} for used in (80, -3, "two")),
    # A class that Transformers has no language model for, whose author's code is not run.
    LLAMA | {"model_type": "siglip_text_model", "auto_map": {"AutoModelForCausalLM": "own.Own"}},
]  # fmt: skip


@pytest.mark.parametrize("config", UNCOUNTED)
def test_weights_that_cannot_be_counted_are_asked_for(config: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "mine", config)
    ran = tmp_path / "ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\nclass Own: pass\n"
    (path.parent / "own.py").write_text(code, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        model_of(str(path))
    assert caught.value.text.key == "error.sim.no_weights"
    assert caught.value.text.params["why"]
    assert not ran.exists()
    assert model_of(str(path), GIB).weight_bytes() == GIB


def test_a_cached_model_of_a_hub_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "hub" / "models--lab--mine" / "snapshots" / "0a"
    snapshot.mkdir(parents=True)
    written(snapshot, LLAMA)
    weights(snapshot / "model.safetensors", 500)
    size = (snapshot / "model.safetensors").stat().st_size
    assert model_of("lab/mine").weight_bytes() == size
    with pytest.raises(UserError) as caught:
        model_of("lab/other")
    assert caught.value.text.key == "error.sim.hub"


BASE = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
BAD = [
    ([], "model.bad_config"), ("x", "model.bad_config"), (BASE | {"x": 10**30}, "model.bad_config"),
    (BASE | {"hidden_size": -64}, "model.lacks"),
    ({**BASE, "head_dim": 16, "hidden_size": 0}, "model.lacks"),
    (BASE | {"layer_types": 5}, "model.lacks"),
    (BASE | {"layer_types": ["full_attention"]}, "model.lacks"),
    (BASE | {"num_attention_heads": "many"}, "model.lacks"),
    (BASE | {"num_attention_heads": 7}, "model.lacks"),  # of no whole size
    (BASE | {"num_key_value_heads": 3}, "model.lacks"),
    (BASE | {"num_key_value_heads": 8}, "model.lacks"),  # more than query heads
    (BASE | {"torch_dtype": "banana"}, "model.lacks"),
    (BASE | {"max_position_embeddings": -5}, "model.lacks"),
    (BASE | {"head_dim": 12.5}, "model.lacks"),
    (BASE | {"num_kv_shared_layers": 3}, "model.lacks"),
    (BASE | {"model_type": "mistral", "sliding_window": -5}, "model.lacks"),
    ({"num_hidden_layers": 3}, "model.lacks"),
    (BASE | {"num_hidden_layers": 10**9}, "model.lacks"),
    (BASE | {"model_type": "jamba"}, "model.lacks"),
    (BASE | {"sliding_window": 9, "model_type": "odd"}, "sim.model_refused"),
    (BASE | {"is_encoder_decoder": True}, "sim.model_refused"),
    (BASE | {"model_type": "gpt_neo", "attention_types": [[["local"], 10**9]]},
     "sim.model_refused"),
    (BASE | {"num_kv_heads_of_odd_layers": 2}, "sim.model_refused"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "key"), BAD)
def test_a_config_that_is_none_is_one_line(config: Any, key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine", config)
    with pytest.raises(UserError) as caught:
        model_of(str(path), GIB)
    assert caught.value.text.key == f"error.{key}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniHub]:
    """A real server that has one model, whose weights nobody asks for."""
    from huggingface_hub import constants

    files = {"config.json": json.dumps(LLAMA).encode(), "model.safetensors": bytes(3 << 20)}
    served = MiniHub(files, "lab/of-mine")
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield served
    served.close()


def test_a_config_comes_from_the_hub_and_its_weights_stay_there(
    hub: MiniHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = model_of("lab/of-mine")
    assert (found.name, found.hub, found.weights) == ("of-mine", "lab/of-mine", 3 << 20)
    assert not any("model.safetensors" in path for path in hub.requests)
    hub.close()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert model_of("lab/of-mine", 1 << 20).name == "of-mine"  # from the cache
    words = ("plan", "--gpu", "h100", "--lang", "en", "--model")
    for name, part in (("lab/else", "--weights SIZE"), ("qwen/qwen3-32bb", "qwen3-32b")):
        assert main([*words, name]) == ExitCode.USAGE
        assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"type": "linear", "factor": 4.0}, 4 * 4096),
        ({"rope_type": "dynamic", "factor": 2.0}, 2 * 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 4 * 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "llama3", "factor": 8.0}, 4096),
        ({"type": "linear", "factor": "x"}, 4096),
        ({"type": "linear", "factor": 1e300}, 4096),
    ],
)
def test_rope_scaling_lengthens_a_context(rope: dict[str, object], positions: int) -> None:
    config = LLAMA | {"max_position_embeddings": 4096, "rope_scaling": rope}
    assert replace(find_model("llama-2-7b"), config=config).max_positions == positions
