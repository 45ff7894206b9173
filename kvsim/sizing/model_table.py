"""Published models: the fields of their Transformers configs that determine the KV cache.

Source of each row: ``config.json`` in the publisher's Hugging Face repository (named in the row),
with the field names of the Transformers configuration class. For GPT-2, OPT and Llama also the
papers (Radford et al. 2019; arXiv 2205.01068, table 1; arXiv 2302.13971, table 2; arXiv 2307.09288;
arXiv 2407.21783, table 3).

``parameters`` counts the weights that Transformers creates from the config, tied ones once; tests
compare. ``active`` counts those used per token in a mixture of experts.
"""

from __future__ import annotations

from typing import Any

Row = tuple[str, str, str, int, int | None, dict[str, Any]]


def _decoder(
    kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, positions: int,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **more,
    }


def _gpt2(layers: int, width: int, heads: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_positions": 1024,
        "vocab_size": 50257,
    }


def _opt(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "opt",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "word_embed_proj_dim": hidden,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        **more,
    }


def _neox(layers: int, hidden: int, heads: int, vocab: int) -> dict[str, Any]:
    # GPT-NeoX configs have no number of KV heads: every query head has its own.
    config = _decoder("gpt_neox", layers, hidden, heads, heads, 4 * hidden, vocab, 2048)
    del config["num_key_value_heads"]
    return config


def _falcon(layers: int, hidden: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "falcon",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "vocab_size": 65024,
        "max_position_embeddings": 2048,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        **more,
    }


_TIED = {"tie_word_embeddings": True}
_GROUPS = {"new_decoder_architecture": True, "multi_query": True, "num_kv_heads": 8}
_LLAMA31, _H128 = 131_072, {"head_dim": 128}
F8, F16, BF16, F32 = "float8", "float16", "bfloat16", "float32"

# name, repository on the Hub, dtype of the weights, parameters, active, config
ROWS: tuple[Row, ...] = (
    ("gpt2", "openai-community/gpt2", F32, 124_439_808, None, _gpt2(12, 768, 12)),
    ("gpt2-medium", "openai-community/gpt2-medium", F32, 354_823_168, None, _gpt2(24, 1024, 16)),
    ("gpt2-large", "openai-community/gpt2-large", F32, 774_030_080, None, _gpt2(36, 1280, 20)),
    ("gpt2-xl", "openai-community/gpt2-xl", F32, 1_557_611_200, None, _gpt2(48, 1600, 25)),
    ("opt-125m", "facebook/opt-125m", F16, 125_239_296, None, _opt(12, 768, 12)),
    ("opt-350m", "facebook/opt-350m", F16, 331_196_416, None,
     _opt(24, 1024, 16, word_embed_proj_dim=512, do_layer_norm_before=False)),
    ("opt-1.3b", "facebook/opt-1.3b", F16, 1_315_758_080, None, _opt(24, 2048, 32)),
    ("opt-2.7b", "facebook/opt-2.7b", F16, 2_651_596_800, None, _opt(32, 2560, 32)),
    ("opt-6.7b", "facebook/opt-6.7b", F16, 6_658_473_984, None, _opt(32, 4096, 32)),
    ("opt-13b", "facebook/opt-13b", F16, 12_853_473_280, None, _opt(40, 5120, 40)),
    ("opt-30b", "facebook/opt-30b", F16, 29_974_540_288, None, _opt(48, 7168, 56)),
    ("opt-66b", "facebook/opt-66b", F16, 65_719_701_504, None, _opt(64, 9216, 72)),
    # The weights are not public; sizes are from table 1 of the paper.
    ("opt-175b", "(arXiv 2205.01068)", F16, 174_604_468_224, None, _opt(96, 12288, 96)),
    ("llama-7b", "huggyllama/llama-7b", F16, 6_738_415_616, None,
     _decoder("llama", 32, 4096, 32, 32, 11008, 32000, 2048)),
    ("llama-13b", "huggyllama/llama-13b", F16, 13_015_864_320, None,
     _decoder("llama", 40, 5120, 40, 40, 13824, 32000, 2048)),
    ("llama-30b", "huggyllama/llama-30b", F16, 32_528_943_616, None,
     _decoder("llama", 60, 6656, 52, 52, 17920, 32000, 2048)),
    ("llama-65b", "huggyllama/llama-65b", F16, 65_285_660_672, None,
     _decoder("llama", 80, 8192, 64, 64, 22016, 32000, 2048)),
    ("llama-2-7b", "meta-llama/Llama-2-7b-hf", F16, 6_738_415_616, None,
     _decoder("llama", 32, 4096, 32, 32, 11008, 32000, 4096)),
    ("llama-2-13b", "meta-llama/Llama-2-13b-hf", F16, 13_015_864_320, None,
     _decoder("llama", 40, 5120, 40, 40, 13824, 32000, 4096)),
    ("llama-2-70b", "meta-llama/Llama-2-70b-hf", F16, 68_976_648_192, None,
     _decoder("llama", 80, 8192, 64, 8, 28672, 32000, 4096)),
    ("llama-3-8b", "meta-llama/Meta-Llama-3-8B", BF16, 8_030_261_248, None,
     _decoder("llama", 32, 4096, 32, 8, 14336, 128256, 8192)),
    ("llama-3-70b", "meta-llama/Meta-Llama-3-70B", BF16, 70_553_706_496, None,
     _decoder("llama", 80, 8192, 64, 8, 28672, 128256, 8192)),
    ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", BF16, 8_030_261_248, None,
     _decoder("llama", 32, 4096, 32, 8, 14336, 128256, _LLAMA31)),
    ("llama-3.1-70b", "meta-llama/Llama-3.1-70B", BF16, 70_553_706_496, None,
     _decoder("llama", 80, 8192, 64, 8, 28672, 128256, _LLAMA31)),
    ("llama-3.1-405b", "meta-llama/Llama-3.1-405B", BF16, 405_853_388_800, None,
     _decoder("llama", 126, 16384, 128, 8, 53248, 128256, _LLAMA31)),
    ("llama-3.2-1b", "meta-llama/Llama-3.2-1B", BF16, 1_235_814_400, None,
     _decoder("llama", 16, 2048, 32, 8, 8192, 128256, _LLAMA31, head_dim=64, **_TIED)),
    ("llama-3.2-3b", "meta-llama/Llama-3.2-3B", BF16, 3_212_749_824, None,
     _decoder("llama", 28, 3072, 24, 8, 8192, 128256, _LLAMA31, **_H128, **_TIED)),
    ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", BF16, 70_553_706_496, None,
     _decoder("llama", 80, 8192, 64, 8, 28672, 128256, _LLAMA31)),
    ("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", BF16, 1_100_048_384, None,
     _decoder("llama", 22, 2048, 32, 4, 5632, 32000, 2048)),
    ("yi-34b", "01-ai/Yi-34B", BF16, 34_388_917_248, None,
     _decoder("llama", 60, 7168, 56, 8, 20480, 64000, 4096)),
    ("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", BF16, 7_241_732_096, None,
     _decoder("mistral", 32, 4096, 32, 8, 14336, 32000, 32768, sliding_window=4096)),
    ("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", BF16, 7_248_023_552, None,
     _decoder("mistral", 32, 4096, 32, 8, 14336, 32768, 32768, sliding_window=None)),
    ("mistral-small-24b", "mistralai/Mistral-Small-24B-Base-2501", BF16, 23_572_403_200, None,
     _decoder("mistral", 40, 5120, 32, 8, 32768, 131072, 32768, sliding_window=None, **_H128)),
    ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", BF16, 46_702_792_704, 12_879_925_248,
     _decoder("mixtral", 32, 4096, 32, 8, 14336, 32000, 32768, sliding_window=None,
              num_local_experts=8, num_experts_per_tok=2)),
    ("mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", BF16, 140_620_634_112, 39_152_031_744,
     _decoder("mixtral", 56, 6144, 48, 8, 16384, 32000, 65536, sliding_window=None,
              num_local_experts=8, num_experts_per_tok=2)),
    ("qwen2-0.5b", "Qwen/Qwen2-0.5B-Instruct", BF16, 494_032_768, None,
     _decoder("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, **_TIED)),
    ("qwen2-1.5b", "Qwen/Qwen2-1.5B-Instruct", BF16, 1_543_714_304, None,
     _decoder("qwen2", 28, 1536, 12, 2, 8960, 151936, 32768, **_TIED)),
    ("qwen2-7b", "Qwen/Qwen2-7B-Instruct", BF16, 7_615_616_512, None,
     _decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, 32768)),
    ("qwen2-72b", "Qwen/Qwen2-72B-Instruct", BF16, 72_706_203_648, None,
     _decoder("qwen2", 80, 8192, 64, 8, 29568, 152064, 32768)),
    ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", BF16, 494_032_768, None,
     _decoder("qwen2", 24, 896, 14, 2, 4864, 151936, 32768, **_TIED)),
    ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct", BF16, 1_543_714_304, None,
     _decoder("qwen2", 28, 1536, 12, 2, 8960, 151936, 32768, **_TIED)),
    ("qwen2.5-3b", "Qwen/Qwen2.5-3B-Instruct", BF16, 3_085_938_688, None,
     _decoder("qwen2", 36, 2048, 16, 2, 11008, 151936, 32768, **_TIED)),
    ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct", BF16, 7_615_616_512, None,
     _decoder("qwen2", 28, 3584, 28, 4, 18944, 152064, 32768)),
    ("qwen2.5-14b", "Qwen/Qwen2.5-14B-Instruct", BF16, 14_770_033_664, None,
     _decoder("qwen2", 48, 5120, 40, 8, 13824, 152064, 32768)),
    ("qwen2.5-32b", "Qwen/Qwen2.5-32B-Instruct", BF16, 32_763_876_352, None,
     _decoder("qwen2", 64, 5120, 40, 8, 27648, 152064, 32768)),
    ("qwen2.5-72b", "Qwen/Qwen2.5-72B-Instruct", BF16, 72_706_203_648, None,
     _decoder("qwen2", 80, 8192, 64, 8, 29568, 152064, 32768)),
    ("qwen3-0.6b", "Qwen/Qwen3-0.6B", BF16, 596_049_920, None,
     _decoder("qwen3", 28, 1024, 16, 8, 3072, 151936, 40960, **_H128, **_TIED)),
    ("qwen3-1.7b", "Qwen/Qwen3-1.7B", BF16, 1_720_574_976, None,
     _decoder("qwen3", 28, 2048, 16, 8, 6144, 151936, 40960, **_H128, **_TIED)),
    ("qwen3-4b", "Qwen/Qwen3-4B", BF16, 4_022_468_096, None,
     _decoder("qwen3", 36, 2560, 32, 8, 9728, 151936, 40960, **_H128, **_TIED)),
    ("qwen3-8b", "Qwen/Qwen3-8B", BF16, 8_190_735_360, None,
     _decoder("qwen3", 36, 4096, 32, 8, 12288, 151936, 40960, **_H128)),
    ("qwen3-14b", "Qwen/Qwen3-14B", BF16, 14_768_307_200, None,
     _decoder("qwen3", 40, 5120, 40, 8, 17408, 151936, 40960, **_H128)),
    ("qwen3-32b", "Qwen/Qwen3-32B", BF16, 32_762_123_264, None,
     _decoder("qwen3", 64, 5120, 64, 8, 25600, 151936, 40960, **_H128)),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", BF16, 30_532_122_624, 3_353_032_704,
     _decoder("qwen3_moe", 48, 2048, 32, 4, 6144, 151936, 40960, **_H128,
              moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8)),
    ("gemma-2b", "google/gemma-2b", BF16, 2_506_172_416, None,
     _decoder("gemma", 18, 2048, 8, 1, 16384, 256000, 8192, head_dim=256, **_TIED)),
    ("gemma-7b", "google/gemma-7b", BF16, 8_537_680_896, None,
     _decoder("gemma", 28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256, **_TIED)),
    ("gemma-2-2b", "google/gemma-2-2b", BF16, 2_614_341_888, None,
     _decoder("gemma2", 26, 2304, 8, 4, 9216, 256000, 8192, head_dim=256, sliding_window=4096,
              **_TIED)),
    ("gemma-2-9b", "google/gemma-2-9b", BF16, 9_241_705_984, None,
     _decoder("gemma2", 42, 3584, 16, 8, 14336, 256000, 8192, head_dim=256, sliding_window=4096,
              **_TIED)),
    ("gemma-2-27b", "google/gemma-2-27b", BF16, 27_227_128_320, None,
     _decoder("gemma2", 46, 4608, 32, 16, 36864, 256000, 8192, head_dim=128, sliding_window=4096,
              **_TIED)),
    ("phi-1.5", "microsoft/phi-1_5", F16, 1_418_270_720, None,
     _decoder("phi", 24, 2048, 32, 32, 8192, 51200, 2048)),
    ("phi-2", "microsoft/phi-2", F16, 2_779_683_840, None,
     _decoder("phi", 32, 2560, 32, 32, 10240, 51200, 2048)),
    ("phi-3-mini-4k", "microsoft/Phi-3-mini-4k-instruct", BF16, 3_821_079_552, None,
     _decoder("phi3", 32, 3072, 32, 32, 8192, 32064, 4096, sliding_window=2047)),
    ("phi-3-medium-4k", "microsoft/Phi-3-medium-4k-instruct", BF16, 13_960_238_080, None,
     _decoder("phi3", 40, 5120, 40, 10, 17920, 32064, 4096, sliding_window=2047)),
    ("phi-4", "microsoft/phi-4", BF16, 14_659_507_200, None,
     _decoder("phi3", 40, 5120, 40, 10, 17920, 100352, 16384, sliding_window=None)),
    ("falcon-7b", "tiiuae/falcon-7b", BF16, 6_921_720_704, None,
     _falcon(32, 4544, 71, multi_query=True)),
    ("falcon-40b", "tiiuae/falcon-40b", BF16, 41_303_293_952, None,
     _falcon(60, 8192, 128, **_GROUPS)),
    ("gpt-j-6b", "EleutherAI/gpt-j-6b", F16, 6_050_882_784, None,
     {"model_type": "gptj", "n_layer": 28, "n_embd": 4096, "n_head": 16, "n_positions": 2048,
      "vocab_size": 50400}),
    ("gpt-neox-20b", "EleutherAI/gpt-neox-20b", F16, 20_554_567_680, None,
     _neox(44, 6144, 64, 50432)),
    ("pythia-70m", "EleutherAI/pythia-70m", F16, 70_426_624, None, _neox(6, 512, 8, 50304)),
    ("pythia-160m", "EleutherAI/pythia-160m", F16, 162_322_944, None, _neox(12, 768, 12, 50304)),
    ("pythia-410m", "EleutherAI/pythia-410m", F16, 405_334_016, None, _neox(24, 1024, 16, 50304)),
    ("pythia-1b", "EleutherAI/pythia-1b", F16, 1_011_781_632, None, _neox(16, 2048, 8, 50304)),
    ("pythia-1.4b", "EleutherAI/pythia-1.4b", F16, 1_414_647_808, None,
     _neox(24, 2048, 16, 50304)),
    ("pythia-2.8b", "EleutherAI/pythia-2.8b", F16, 2_775_208_960, None,
     _neox(32, 2560, 32, 50304)),
    ("pythia-6.9b", "EleutherAI/pythia-6.9b", F16, 6_857_302_016, None,
     _neox(32, 4096, 32, 50432)),
    ("pythia-12b", "EleutherAI/pythia-12b", F16, 11_846_072_320, None,
     _neox(36, 5120, 40, 50688)),
    ("bloom-7b1", "bigscience/bloom-7b1", F16, 7_069_016_064, None,
     {"model_type": "bloom", "n_layer": 30, "hidden_size": 4096, "n_head": 32,
      "vocab_size": 250880}),
    ("bloom-176b", "bigscience/bloom", BF16, 176_247_271_424, None,
     {"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112,
      "vocab_size": 250880}),
    ("starcoder-15b", "bigcode/starcoder", F32, 15_517_456_384, None,
     {"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48,
      "n_positions": 8192, "n_inner": 24576, "vocab_size": 49152, "multi_query": True}),
    ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", BF16, 15_706_484_224, 2_661_150_208,
     _decoder("deepseek_v2", 27, 2048, 16, 16, 10944, 102400, 163840, kv_lora_rank=512,
              q_lora_rank=None, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
              moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2,
              num_experts_per_tok=6, first_k_dense_replace=1)),
    ("deepseek-v3", "deepseek-ai/DeepSeek-V3", F8, 671_026_404_352, 37_552_282_624,
     _decoder("deepseek_v3", 61, 7168, 128, 128, 18432, 129280, 163840, kv_lora_rank=512,
              q_lora_rank=1536, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
              moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
              num_experts_per_tok=8, first_k_dense_replace=3)),
)  # fmt: skip
