"""Model directories as people have them: of any family, without weights, without a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from arms_here import Gathered
from transformers import (
    BioGptConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MixtralConfig,
    OPTConfig,
    PretrainedConfig,
)

from experiment.children import prepare
from experiment.config.schema import Config
from experiment.events import (
    ModelDirectory,
    ModelPrepared,
    Notice,
    Progress,
    WorkloadReady,
)
from experiment.model.builtin import build_model, cache_root
from experiment.model.load import load_model
from experiment.model.source import text_warning
from experiment.text.errors import UserError
from experiment.text.messages import Message
from kvsim.sizing.models import MODELS

VOCABULARY = {"vocab_size": 97, "bos_token_id": 1, "eos_token_id": 2}
HIDDEN: dict[str, Any] = {
    **VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
GPT: dict[str, Any] = {**VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4}
LENGTHS = [(5, 3), (9, 2)]


class Heard(Gathered):
    """What the preparing process sends."""

    def one(self, kind: type[Any]) -> Any:
        (found,) = (event for event in self.events if isinstance(event, kind))
        return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "cache"))


def directory_of(config: PretrainedConfig, place: Path) -> Path:
    """A directory with a config.json alone."""
    config.save_pretrained(place)
    return place


def config_of(place: Path, seed: int = 0, **workload: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"name": str(place)},
            "cache": {"max_length": 64},
            "run": {"seed": seed},
            "workload": workload or {"lengths": LENGTHS},
        }
    )


def prepared(place: Path, seed: int = 0, **workload: Any) -> Heard:
    """What is heard of a preparation, by default with drawn token ids."""
    config = config_of(place, seed, **workload)
    heard = Heard()
    task = {"config": config.model_dump(mode="json"), "device": "cpu", "arms": ["paged"]}
    prepare.main(heard, task)  # type: ignore[arg-type]
    return heard


def refusal(place: Path, **workload: Any) -> str:
    with pytest.raises(UserError) as caught:
        prepared(place, **workload)
    text = caught.value.text
    if text.key == "error.model.advice":
        text = Message.model_validate(text.params["refusal"])
    assert str(place) in text.params.values()
    return text.key.removeprefix("error.model.")


def advice(place: Path) -> dict[str, Any]:
    """The parameters of what a refusal names instead."""
    with pytest.raises(UserError) as caught:
        prepared(place)
    assert caught.value.text.key == "error.model.advice"
    return dict(caught.value.text.params)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(**GPT),  # needs data to run, and so does a mixture of experts: not judged yet
        MixtralConfig(num_key_value_heads=2, num_local_experts=4, **HIDDEN),
        OPTConfig(hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, ffn_dim=48,
                  num_attention_heads=4, max_position_embeddings=64, **VOCABULARY),
        GPTNeoXConfig(**HIDDEN),
        BioGptConfig(**HIDDEN),  # says of itself that it supports no other attention, and does
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_a_family_that_can_run_is_prepared(config: PretrainedConfig, tmp_path: Path) -> None:
    model = prepared(directory_of(config, tmp_path / "mine")).one(ModelPrepared)
    assert (model.layers, model.vocab_size) == (2, 97)


def test_a_config_alone_gets_random_weights_and_it_is_said(tmp_path: Path) -> None:
    mine = directory_of(LlamaConfig(num_key_value_heads=2, **HIDDEN), tmp_path / "mine")
    heard = prepared(mine, seed=7)
    model, weights = heard.one(ModelPrepared), heard.one(ModelDirectory).path
    assert (model.name, model.source, model.random_seed) == (str(mine), "random", 7)
    assert (model.layers, model.kv_heads, model.head_dim) == (2, 2, 8)
    assert [note.key for note in model.notes] == ["model.random_text"]
    warning = text_warning(config_of(mine))
    assert warning is not None
    assert warning.key == "model.random_text"
    assert [path.name for path in mine.iterdir()] == ["config.json"]
    loaded = load_model(weights, "float32", "cpu", "sdpa")
    deviation = float(loaded.get_parameter("model.layers.0.mlp.up_proj.weight").std())
    assert deviation == pytest.approx(model.random_init_range, rel=0.05)
    again = prepared(mine, seed=7)
    assert again.one(ModelDirectory).path == weights
    assert "prepare.build" not in {e.task.key for e in again.events if isinstance(e, Progress)}
    assert prepared(mine, seed=8).one(ModelPrepared).weights_sha256 != model.weights_sha256


def test_a_config_with_a_tokenizer_takes_texts(tmp_path: Path) -> None:
    whole = build_model("tiny-llama", 0, 0.08)
    mine = Path(shutil.copytree(whole, tmp_path / "mine"))
    (mine / "model.safetensors").unlink()
    heard = prepared(mine, prompts=["Hello!"])
    assert heard.one(ModelPrepared).source == "random"
    assert [each.token_ids for each in heard.one(WorkloadReady).requests] == [[15496, 0]]


def test_code_of_a_directory_is_never_run(tmp_path: Path) -> None:
    mine = directory_of(LlamaConfig(**HIDDEN), tmp_path / "mine")
    values = json.loads((mine / "config.json").read_text("utf-8"))
    values["auto_map"] = {"AutoModelForCausalLM": "mine.Model"}
    (mine / "config.json").write_text(json.dumps(values), "utf-8")
    (mine / "mine.py").write_text("raise SystemExit('ran')", "utf-8")
    assert refusal(mine) == "remote_code"
    assert text_warning(config_of(mine)) is not None


@pytest.mark.parametrize(
    ("values", "family", "planned"),
    [
        ({"model_type": "lama"}, "llama", None),
        (dict(MODELS["qwen3-next-80b-a3b"].config), "qwen3", "itself"),
        ({"model_type": "of_the_future"}, "llama", None),
        ({"model_type": "mamba", "num_hidden_layers": 2}, "llama", "falcon-h1-7b"),
        (dict(MODELS["deepseek-v2-lite"].config), "llama", "itself"),
        ({"model_type": "bart"}, "llama", None),
        (
            {"model_type": "phi3", "auto_map": {"AutoConfig": "some.Config"}},
            "phi",
            None,
        ),
    ],
)
def test_a_refusal_names_what_runs_and_what_can_be_planned(
    values: dict[str, Any], family: str, planned: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    found = advice(tmp_path)
    assert family in found["other"]["params"]["families"].split(", ")
    named = found["planned"]["params"]["model"] if found["planned"] else None
    assert named == (str(tmp_path) if planned == "itself" else planned)


@pytest.mark.parametrize(
    ("given", "ends"), [(None, (2,)), (5, (5,)), ([7, 5, 7], (5, 7)), ([5], (5,)), ([], ())]
)
def test_every_end_token_of_a_chat_model_is_known(
    given: int | list[int] | None, ends: tuple[int, ...], tmp_path: Path
) -> None:
    mine = Path(shutil.copytree(build_model("tiny-llama", 0, 0.08), tmp_path / "mine"))
    config = json.loads((mine / "config.json").read_text(encoding="utf-8"))
    (mine / "config.json").write_text(json.dumps(config | {"eos_token_id": 2}), encoding="utf-8")
    if given is not None:
        asked = json.dumps({"eos_token_id": given})
        (mine / "generation_config.json").write_text(asked, encoding="utf-8")
    else:
        (mine / "generation_config.json").unlink(missing_ok=True)
    assert prepared(mine).one(ModelPrepared).eos_token_ids == ends


@pytest.mark.parametrize("file", ["pytorch_model.bin", "adapter_model.safetensors", "q4.gguf"])
def test_weights_in_another_format_are_not_replaced(file: str, tmp_path: Path) -> None:
    mine = directory_of(LlamaConfig(**HIDDEN), tmp_path / "mine")
    (mine / file).write_bytes(b"weights")
    assert refusal(mine) == "no_safetensors"
    assert text_warning(config_of(mine)) is None


def test_weights_that_find_no_room_are_refused_before_they_are_made(tmp_path: Path) -> None:
    wide = {**HIDDEN, "vocab_size": 1 << 30, "hidden_size": 1 << 14}
    assert refusal(directory_of(LlamaConfig(**wide), tmp_path / "mine")) == "no_memory"
    assert list(cache_root().iterdir()) == []


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_without_a_tokenizer_runs_where_token_ids_are_drawn(
    family: str, tmp_path: Path
) -> None:
    """Of GPT-2 without its files Transformers makes a tokenizer that knows no text."""
    mine = Path(shutil.copytree(build_model(f"tiny-{family}", 0, 0.08), tmp_path / "mine"))
    for file in mine.glob("tokenizer*"):
        file.unlink()
    heard = prepared(mine)
    requests = heard.one(WorkloadReady).requests
    assert [len(each.token_ids) for each in requests] == [prompt for prompt, _ in LENGTHS]
    assert [each.prompt for each in requests] == [
        " ".join(map(str, each.token_ids)) for each in requests
    ]
    assert heard.one(ModelPrepared).source == "local"
    assert heard.one(Notice).text.key == "prepare.no_tokenizer"
    assert refusal(mine, prompts=["Hello!"]) == "no_tokenizer"


def test_weights_larger_than_the_memory_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(shutil.copytree(build_model("tiny-gpt2", 0, 0.08), tmp_path / "mine"))
    little = SimpleNamespace(available=1000, total=1000)
    monkeypatch.setattr(prepare.psutil, "virtual_memory", lambda: little)
    assert refusal(place) == "no_memory"
