"""The catalogue against Transformers: caches of small random models, and counts of all weights."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from sweeps import FULL
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from kvsim.sizing.fields import UnsupportedGeometryError
from kvsim.sizing.geometry import KVGeometry, geometry_from_config
from kvsim.sizing.gpus import GPUS, MIB, UnknownGPUError, find_gpu
from kvsim.sizing.layers import Serving, layer_caches
from kvsim.sizing.models import MODELS, REFUSED, ModelFacts, UnknownModelError, find_model

WINDOW = 6
TOKENS = 9
# One model of each kind of attention; its sizes are replaced by small ones that keep the kind.
KINDS = (
    "gpt2", "opt-125m", "llama-2-7b", "llama-3-8b", "llama-3.2-3b", "mistral-7b-v0.1",
    "mistral-7b-v0.3", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "gemma-2b",
    "gemma-2-2b", "phi-2", "phi-3-mini-4k", "falcon-7b", "gpt-j-6b", "pythia-70m", "bloom-7b1",
    "starcoder-15b", "deepseek-v2-lite", "deepseek-v3",
)  # fmt: skip
SMALL = {
    "num_hidden_layers": 4, "n_layer": 4, "hidden_size": 48, "n_embd": 48, "vocab_size": 40,
    "num_attention_heads": 6, "n_head": 6, "intermediate_size": 16, "ffn_dim": 16, "n_inner": 16,
    "word_embed_proj_dim": 48, "max_position_embeddings": 64, "n_positions": 64, "head_dim": 12,
    "num_local_experts": 2, "num_experts": 4, "num_experts_per_tok": 2, "n_routed_experts": 8,
    "moe_intermediate_size": 16, "kv_lora_rank": 20, "qk_rope_head_dim": 6, "v_head_dim": 10,
    "qk_nope_head_dim": 10, "num_kv_heads": 2, "first_k_dense_replace": 1,
}  # fmt: skip


def shrunk(facts: ModelFacts) -> dict[str, Any]:
    """The fields of a published config with small values; groups, windows and flags stay."""
    config = {key: SMALL.get(key, value) for key, value in facts.config.items()}
    kv, heads = config.get("num_key_value_heads"), facts.config.get("num_attention_heads")
    if kv is not None:
        config["num_key_value_heads"] = 6 if kv == heads else min(kv, 2)
    if config.get("sliding_window"):
        config["sliding_window"] = WINDOW
    if facts.config.get("q_lora_rank"):
        config["q_lora_rank"] = 8
    if config["model_type"] == "gptj":
        config["rotary_dim"] = 4
    if config["model_type"].startswith("deepseek"):
        config |= {"n_group": 2, "topk_group": 1}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        config[key] = None
    return config


def transformers_config(config: dict[str, Any]) -> Any:
    given = {key: value for key, value in config.items() if key != "model_type"}
    if config["model_type"] == "kimi_k2":  # the class of its architecture
        return AutoConfig.for_model("deepseek_v3", **given)
    return AutoConfig.for_model(config["model_type"], **given)


def cache_of(config: Any, dtype: torch.dtype) -> DynamicCache:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    cache = DynamicCache(config=config)
    with torch.inference_mode():
        model(input_ids=torch.arange(TOKENS)[None], past_key_values=cache, use_cache=True)
    return cache


def cache_bytes(cache: DynamicCache) -> int:
    # Each layer's tensors as they are; a latent cache has a compressed and a rotary part.
    return sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))


def windows(config: dict[str, Any]) -> list[int]:
    """The windows of the layers that have one."""
    return [cache.span for cache in layer_caches(config, Serving()) if cache.kind == "window"]


@pytest.mark.parametrize("name", KINDS)
def test_the_catalogue_s_rule_is_the_size_of_a_real_cache(name: str) -> None:
    published = shrunk(MODELS[name])
    config = transformers_config(published)
    cache = cache_of(config, torch.bfloat16)
    geometry = geometry_from_config(published, 2)
    assert geometry == geometry_from_config(config.to_dict(), 2)
    assert geometry.layers == len(cache.layers) == 4
    # Transformers drops the token that the next one will push out; during a step there are
    # as many as the window says.
    sliding = windows(published)
    forgotten = len(sliding) * (TOKENS - (WINDOW - 1)) * geometry.bytes_per_token // 4
    assert cache_bytes(cache) == geometry.bytes_per_token * TOKENS - forgotten
    assert set(sliding) <= {WINDOW}
    assert len(sliding) == sum(layer.keys.shape[2] < TOKENS for layer in cache.layers)


def test_falcon_s_groups_are_what_its_repeated_cache_holds_once() -> None:
    published = shrunk(MODELS["falcon-40b"])
    cache = cache_of(transformers_config(published), torch.float32)
    geometry = geometry_from_config(published, 4)
    keys = cache.layers[0].keys[0]
    assert keys.shape[0] == 6
    assert len(torch.unique(keys.flatten(1), dim=0)) == geometry.kv_heads == 2
    assert cache_bytes(cache) == 3 * geometry.bytes_per_token * TOKENS


# Rounded numbers are the publisher's: Transformers has no such class, or no such fields are known.
COUNTED = [name for name, facts in MODELS.items() if facts.parameters % 10**7]
OF_TOKEN = ("moe_topk", "num_experts_per_tok", "num_experts_per_token", "top_k_experts")
OF_ALL = ("num_local_experts", "num_experts", "n_routed_experts")


def first_number(config: dict[str, Any], names: tuple[str, ...]) -> int:
    found = (config.get(name) for name in names)
    return next((number for number in found if isinstance(number, int) and number), 1)


@pytest.mark.parametrize("name", COUNTED if FULL else COUNTED[::4])
def test_the_number_of_weights_is_what_transformers_builds(name: str) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    facts = MODELS[name]
    config = transformers_config(dict(facts.config)).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    total = sum(weight.numel() for weight in model.parameters())
    experts = sum(w.numel() for key, w in model.named_parameters() if ".experts." in key)
    published = {**config.to_dict(), **facts.text}
    number, used = first_number(published, OF_ALL), first_number(published, OF_TOKEN)
    assert total == facts.parameters
    assert facts.active_parameters == pytest.approx(total - experts + experts * used / number)
    assert facts.expert_parameters in (0, experts)


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("gpt2", 36), ("opt-13b", 800), ("opt-66b", 2304), ("opt-175b", 4608), ("llama-13b", 800),
        ("llama-2-7b", 512), ("llama-2-70b", 320), ("llama-3.1-8b", 128), ("llama-3.1-405b", 504),
        ("mistral-7b-v0.1", 128), ("qwen2.5-7b", 56), ("falcon-7b", 8), ("falcon-40b", 120),
        ("deepseek-v3", 61 * 1.125), ("gemma-7b", 448), ("bloom-176b", 3920),
    ],
)  # fmt: skip
def test_bytes_per_token_by_hand(name: str, kib: float) -> None:
    assert find_model(name).token_bytes() == kib * 1024


@pytest.mark.parametrize(
    ("config", "layers", "sliding"),
    [
        ({"model_type": "gemma3_text", "sliding_window": 512}, 26, 22),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 3}, 26, 18),
        ({"model_type": "cohere2", "sliding_window": 4096}, 40, 30),
        ({"model_type": "qwen2", "sliding_window": 99, "use_sliding_window": False}, 32, 0),
        ({"model_type": "qwen2", "sliding_window": 99, "use_sliding_window": True}, 32, 4),
        ({"model_type": "qwen3", "sliding_window": 99, "use_sliding_window": True,
          "max_window_layers": 0}, 32, 32),
    ],
)  # fmt: skip
def test_a_config_without_layer_types_gives_what_transformers_makes_of_it(
    config: dict[str, Any], layers: int, sliding: int
) -> None:
    shape = {"num_hidden_layers": layers, "num_attention_heads": 4, "hidden_size": 64}
    assert len(windows(config | shape)) == sliding
    real = transformers_config(config | shape | {"num_key_value_heads": 4})
    assert sum(kind == "sliding_attention" for kind in real.layer_types) == sliding


BASE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"is_encoder_decoder": True}, "encoder_decoder"),
        ({"model_type": "xlm-roberta"}, "encoder"),
        ({"model_type": "falcon_h1"}, "recurrent"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "recurrent"),
        ({"layer_types": ["full_attention", "of_the_future"]}, "layer_types"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "window_unknown"),
        ({"attention_chunk_size": 8192}, "chunked"),
        ({"model_type": "something_new", "mamba_d_state": 16}, "layer_types"),
        ({"model_type": "something_new", "kv_lora_rank": 16}, "unknown_key"),
        ({"num_kv_shared_layers": 10}, "shared_layers"),
        ({"index_head_dim": 128, "kv_lora_rank": 512}, "indexer"),
        ({"cross_attention_layers": [3]}, "cross_attention"),
        ({"sliding_window": 128, "model_type": "something_new"}, "window_unknown"),
        ({"num_key_value_heads": [1, 2]}, "head_sizes"),
        ({"v_head_dim": 8}, "head_sizes"),
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "head_sizes"),
        ({"num_kv_heads_of_odd_layers": 2}, "unknown_key"),
        ({"local_window": 64}, "unknown_key"),
        ({"text_config": BASE | {"is_encoder_decoder": True}}, "encoder_decoder"),
    ],
)
def test_a_cache_of_another_kind_is_refused_by_name(more: dict[str, Any], reason: str) -> None:
    config = more if "text_config" in more else BASE | more
    with pytest.raises(UnsupportedGeometryError) as caught:
        geometry_from_config(config, 2)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("published", "shape"),
    [
        # As ChatGLM's, Step's, GPT-Neo's and XGLM's config.json have it.
        (
            {"num_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "kv_channels": 8,
             "multi_query_attention": True, "multi_query_group_num": 2},
            (3, 2, 8),
        ),
        (BASE | {"num_attention_groups": 1}, (2, 1, 16)),
        (
            {"model_type": "gpt_neo", "num_layers": 4, "num_heads": 8, "hidden_size": 64,
             "attention_types": [[["global", "local"], 2]], "window_size": 256},
            (4, 8, 8),
        ),
        ({"num_layers": 2, "attention_heads": 4, "d_model": 32}, (2, 4, 8)),
        # Windows that are switched off, or as wide as the positions.
        (BASE | {"model_type": "qwen2_vl", "sliding_window": 9, "use_sliding_window": False},
         (2, 4, 16)),
        (BASE | {"model_type": "phi4mm", "sliding_window": 64, "max_position_embeddings": 64},
         (2, 4, 16)),
        # MiniCPM3: its latent vectors are expanded before they are kept.
        (BASE | {"model_type": "minicpm3", "kv_lora_rank": 256, "qk_nope_head_dim": 64,
                 "qk_rope_head_dim": 32, "v_head_dim": 64}, (2, 4, 96)),
        (BASE | {"per_layer_config": {"1": {"head_dim": 16}}, "head_dim": 16}, (2, 4, 16)),
    ],
)  # fmt: skip
def test_a_config_as_published_is_read(
    published: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    found = geometry_from_config(published, 2)
    assert (found.layers, found.kv_heads, found.head_dim) == shape
    has_windows = "window_size" in published or published.get("model_type") == "phi4mm"
    assert len(windows(published)) == (2 if has_windows else 0)


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": BASE},
        {"llm_config": BASE},
        {"model_type": "any", "thinker_config": {"text_config": BASE}},
    ],
)
def test_a_wrapped_language_model_is_read_inside(config: dict[str, Any]) -> None:
    assert geometry_from_config(config, 2) == KVGeometry(2, 4, 16, 2)


def test_names_are_found_and_close_ones_offered() -> None:
    assert find_model("meta-llama/Llama-3.1-8B") is find_model("LLAMA-3.1-8b")
    with pytest.raises(UnknownModelError) as caught:
        find_model("llama3.1-8b")
    assert "llama-3.1-8b" in caught.value.close
    for name, reason in REFUSED.items():
        with pytest.raises(UnknownModelError) as caught:
            find_model(name)
        assert caught.value.reason == reason


def test_what_weights_are_served_in() -> None:
    assert find_model("gpt2").weight_bytes() == 2 * 124_439_808
    assert find_model("gpt2").weight_bytes("float32") == 4 * 124_439_808
    assert find_model("opt-13b").weight_bytes() == pytest.approx(26e9, rel=0.02)
    assert find_model("deepseek-v3").weight_bytes() == 671_026_404_352
    assert find_model("deepseek-v3").kv_dtype == "bfloat16"


# As NVML and nvidia-smi -L name them.
PRINTED = {
    "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "Tesla T4": "t4",
    "Tesla V100-SXM2-16GB": "v100-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb",
    "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g",
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100-SXM4-80GB": "a100-80gb",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA H100 80GB HBM3": "h100",
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5cb0)": "h100",
    "NVIDIA H100 PCIe": "h100-pcie",
    "NVIDIA H200": "h200",
    "AMD Instinct MI300X": "mi300x",
    "H100-80GB": "h100",
    "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA B300 SXM6 AC": "b300",
    "NVIDIA GB10": "gb10",
    "NVIDIA GH200 480GB": "gh200-96gb",
    "NVIDIA RTX 6000 Ada Generation": "rtx-6000-ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000",
}
# Other GPUs than those of the catalogue, and what comes near them.
OTHER = {
    "NVIDIA GeForce RTX 3090 Ti": ("rtx-3090",),
    "NVIDIA GeForce RTX 4090 Laptop GPU": ("rtx-4090",),
    "Tesla V100-PCIE-32GB": ("v100-32gb", "v100-16gb"),
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": (
        "a100-40gb",
        "a100-40gb-pcie",
        "a100-80gb",
        "a100-80gb-pcie",
    ),
    "4090": ("rtx-4090",),
    "a100": ("a100-40gb", "a100-40gb-pcie", "a100-80gb", "a100-80gb-pcie"),
    "Quadro K620": (),
    "NVIDIA": (),
    "": (),
}


@pytest.mark.parametrize(
    ("published", "name", "gib"),
    [
        # What vLLM printed for weights, or for an unquantised model the catalogue's.
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", 14.96),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b", 5.29),
        ("kaitchup/phi-4-gptq-4bit", "phi-4", 8.51),
        ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b", 4 * 55.19),
    ],
)
def test_published_variants_are_models_of_the_catalogue(
    published: str, name: str, gib: float
) -> None:
    found = find_model(published)
    assert (found.name, found.hub) == (name, published)
    assert found.weight_bytes() / 1024**3 == pytest.approx(gib, rel=0.025)


@pytest.mark.parametrize("printed", PRINTED)
def test_a_gpu_is_found_by_the_name_that_its_driver_prints(printed: str) -> None:
    assert find_gpu(printed) is GPUS[PRINTED[printed]]


@pytest.mark.parametrize("name", GPUS)
def test_makers_capitals_and_signs_do_not_matter(name: str) -> None:
    assert find_gpu("NVIDIA " + name.upper().replace("-", " ")) is GPUS[name]


@pytest.mark.parametrize("name", OTHER)
def test_another_gpu_is_never_taken_for_one_of_the_catalogue(name: str) -> None:
    with pytest.raises(UnknownGPUError) as unknown:
        find_gpu(name)
    assert unknown.value.close == OTHER[name]


def test_gpus_are_plausible_and_say_where_from() -> None:
    for gpu in GPUS.values():
        assert 8_000 * MIB <= gpu.memory_bytes <= 512_000 * MIB
        # Operations that a byte read must pay for: tens to hundreds on all of these.
        assert 30 < gpu.flops / gpu.bandwidth < 500
        assert gpu.bandwidth >= gpu.link_bandwidth
        assert "sheet" in gpu.source or "white paper" in gpu.source


@pytest.mark.parametrize("positions", [True, "8", None, [1]])
def test_positions_that_are_no_number_are_unknown(positions: object) -> None:
    facts = MODELS["llama-3.1-8b"]
    odd = replace(facts, config={**facts.config, "max_position_embeddings": positions})
    assert odd.max_positions is None
