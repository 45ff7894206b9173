"""Models that the two caches cannot hold as they are get refused, each for its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiment.model.builtin import RECIPES
from experiment.model.checks import check_model, max_positions, read_model_config
from experiment.model.families import reason_of
from experiment.text.errors import UserError

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
GROUPED = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 1024}


def config_of(tmp_path: Path, **values: Any) -> Any:
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return read_model_config(tmp_path, "some/model")


def refusal(tmp_path: Path, max_length: int = 512, **values: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(UserError) as caught:
        check_model(config_of(tmp_path, **values), "some/model", max_length)
    return caught.value.text.key.removeprefix("error.model."), caught.value.text.params


# Errors of one config, whatever its family.
NO_FAMILY = ("not_causal", "unknown_key", "quantized")
REFUSED = [
    ("encoder", {"model_type": "t5", "d_model": 64, "num_layers": 2}),
    ("encoder", {"model_type": "bart", "d_model": 64}),
    ("encoder", {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SMALL}),
    ("encoder", {"model_type": "bert", **SMALL}),
    ("encoder", {"model_type": "roberta", "architectures": ["RobertaForCausalLM"], **SMALL}),
    ("not_causal", {"model_type": "vit", "architectures": ["ViTForImageClassification"]}),
    ("not_causal", {"model_type": "mistral", "architectures": ["MistralModel"], **GROUPED}),
    ("window", {"model_type": "mistral", "sliding_window": 256, **GROUPED}),
    ("window", {"model_type": "phi3", "sliding_window": 256, "pad_token_id": 0, **GROUPED}),
    (
        "window",
        {
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 256,
            "max_window_layers": 1,
            **GROUPED,
        },
    ),
    (
        "window",
        {
            "model_type": "gpt_neo",
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 256,
        },
    ),
    ("encoder", {"model_type": "trocr", "d_model": 64}),
    ("positions", {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4}),
    ("no_cache", {"model_type": "xlnet", "d_model": 64, "n_layer": 2, "n_head": 4}),
    ("no_cache", {"model_type": "openai-gpt", "n_embd": 64, "n_layer": 2, "n_head": 4}),
    ("layout", {"model_type": "gemma4_text", "head_dim": 16, **GROUPED}),
    ("unknown_key", {"model_type": "llama", "num_kv_heads_of_odd_layers": 2, **GROUPED}),
    (
        "window",
        {"model_type": "llama4_text", "attention_chunk_size": 256, "head_dim": 16, **GROUPED},
    ),
    ("latent", {"model_type": "deepseek_v3", "kv_lora_rank": 16, **GROUPED}),
    ("latent", {"model_type": "deepseek_v2", "kv_lora_rank": 16, **GROUPED}),
    ("state", {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2}),
    ("state", {"model_type": "mamba2", "hidden_size": 64, "num_heads": 2, "head_dim": 64}),
    ("state", {"model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 2}),
    ("state", {"model_type": "qwen3_next", **GROUPED, "num_hidden_layers": 4}),
    (
        "quantized",
        {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}, **GROUPED},
    ),
]


@pytest.mark.parametrize(("reason", "values"), REFUSED)
def test_refused_with_the_reason(tmp_path: Path, reason: str, values: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        check_model(config_of(tmp_path, **values), "some/model", 512)
    text = caught.value.text
    key = text.key.removeprefix("error.model.")
    assert key == reason if reason in NO_FAMILY else reason_of(text) == reason
    assert text.params["model"] == "some/model"


ACCEPTED = [
    {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4},
    {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 96},
    {"model_type": "llama", **GROUPED},
    {"model_type": "qwen2", "sliding_window": 256, **GROUPED},  # off by default
    {"model_type": "mistral", "sliding_window": None, **GROUPED},
    {"model_type": "mistral", "sliding_window": 512, **GROUPED},  # as long as the longest sequence
    {"model_type": "gemma2", "head_dim": 16, "sliding_window": 4096, **GROUPED},
    {"model_type": "gpt_oss", "head_dim": 16, "sliding_window": 4096, **GROUPED},
    {"model_type": "llama4_text", "attention_chunk_size": 512, "head_dim": 16, **GROUPED},
    {"model_type": "xglm", "d_model": 64, "num_layers": 2, "attention_heads": 4},
    {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], **SMALL},
    {"model_type": "gptj", "n_embd": 64, "rotary_dim": 8, "n_layer": 2, "n_head": 4},
]


@pytest.mark.parametrize("values", ACCEPTED, ids=lambda values: values["model_type"])
def test_a_model_that_may_run_is_accepted(tmp_path: Path, values: dict[str, Any]) -> None:
    check_model(config_of(tmp_path, **values), "some/model", 512)


@pytest.mark.parametrize("recipe", RECIPES)
def test_built_in_models_are_accepted_to_their_last_position(recipe: str) -> None:
    config = RECIPES[recipe]()
    positions = max_positions(config.to_dict())
    assert positions in (1024, 4096)
    check_model(config, recipe, positions)
    with pytest.raises(UserError) as caught:
        check_model(config, recipe, positions + 1)
    assert caught.value.text.key == "error.model.too_long"


def test_a_window_is_compared_with_the_maximum_length(tmp_path: Path) -> None:
    values = {"model_type": "mistral", "sliding_window": 511, **GROUPED}
    assert refusal(tmp_path, 512, **values)[1] == {
        "model": "some/model",
        "family": "mistral",
        "window": 511,
        "max_length": 512,
    }
    check_model(config_of(tmp_path, **values), "some/model", 511)


@pytest.mark.parametrize("kind", ["type", "rope_type"])
def test_longrope_is_accepted_to_the_length_at_which_its_factors_change(
    kind: str, tmp_path: Path
) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    values = {
        "model_type": "phi3", "max_position_embeddings": 4096, "pad_token_id": 0,
        "original_max_position_embeddings": 256, "rope_scaling": {kind: "longrope", **factors},
        **GROUPED,
    }  # fmt: skip
    key, found = refusal(tmp_path, 257, **values)
    assert (key, found["positions"], found["max_length"]) == ("longrope", 256, 257)
    check_model(config_of(tmp_path, **values), "some/model", 256)


def test_a_missing_size_is_named(tmp_path: Path) -> None:
    key, params = refusal(tmp_path, model_type="gpt2", n_embd=64, n_head=0)
    assert key == "missing_size"
    assert "n_head" in params["detail"]


def test_code_of_a_repository_is_never_needed(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        config_of(tmp_path, model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})
    assert caught.value.text.key == "error.model.remote_code"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{", "bad_config"),
        ("[]", "bad_config"),
        ('{"model_type": "of_the_future"}', "unknown_type"),
        ("{}", "lacks"),
        ('{"model_type": "llama", "num_attention_heads": 0}', "unbuildable"),
    ],
)
def test_bad_configs_are_one_clear_error(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        check_model(read_model_config(tmp_path, "some/model"), "some/model", 512)
    assert caught.value.text.key == f"error.model.{key}"


def test_every_stateful_model_of_transformers_is_refused() -> None:
    """Models that say of themselves that they keep a state, with the sizes of their defaults."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    types = ["mamba", "falcon_mamba", "jamba", "zamba2", "recurrent_gemma", "qwen3_next", "bamba"]
    for model_type in types:
        name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
        assert getattr(transformers, name)._is_stateful
        with pytest.raises(UserError):
            check_model(CONFIG_MAPPING[model_type](), model_type, 64)
