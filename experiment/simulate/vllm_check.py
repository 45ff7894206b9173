"""The layout of a plan beside that of an installed vLLM: ``plan --check``.

    plan ─► config, block size, dtype, limits, bytes of a rank ─► vLLM's interpreter ─► LayoutFound
       └─────────────── groups, blocks, tokens, concurrency ──── compared ────────────────┘

No GPU is needed. The config is data: what could name code is left out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from experiment.arms.launch import find_vllm
from experiment.events import ArmFailed, LayoutFound
from experiment.process.child import Child, ChildStartError, ChildTimeoutError
from experiment.process.child_end import end_reason
from experiment.process.scratch_directory import scratch_directory
from experiment.text.messages import Message, message
from kvsim.sizing.models import ELEMENT_BYTES, ModelFacts

Data = Mapping[str, Any]
Verdict = Literal["same", "different", "unknown"]
FIGURES = ("starts", "groups", "blocks", "tokens", "concurrency")
WORKER = "experiment.vllm_worker.check_layout"
_TIMEOUT_S = 300.0
# Fields that name code, files or repositories, and kernels of weights, on which no cache depends.
_LEFT_OUT = re.compile(
    r"auto_map|custom_pipelines|name_or_path|.*_implementation|transformers_weights"
    r"|(quantization|compression|speculators|kernel)_config"
)
# vLLM's classes for language models that published configs nest in others.
_LANGUAGE_MODELS = {
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma4_unified_text": "Gemma4ForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "exaone4_5_text": "Exaone4ForCausalLM",
}
_RENAMED = {"exaone4_5_text": "exaone4"}
# What vLLM's classes ask for, published configs have and no cache depends on.
_FILLED: dict[str, dict[str, Any]] = {
    "chatglm": {
        "original_rope": True, "add_bias_linear": False, "add_qkv_bias": True, "rmsnorm": True,
        "ffn_hidden_size": 13_696, "apply_residual_connection_post_layernorm": False,
        "layernorm_epsilon": 1e-5, "post_layer_norm": True, "padded_vocab_size": 151_552,
        "seq_length": 131_072, "tie_word_embeddings": False,
    },
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "lfm2": {
        "conv_dim": 2048, "block_dim": 2048, "block_multiple_of": 256,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0,
    },
    "mimo_v2_flash": {"layernorm_epsilon": 1e-5, "sliding_window_size": 128},
    "minimax_m2": {"rotary_dim": 64, "scoring_func": "sigmoid"},
}  # fmt: skip


def check_plan(data: Data, model: ModelFacts) -> dict[str, Any]:
    """Lay the plan's cache out by an installed vLLM and compare.

    Args:
        data: of :func:`experiment.simulate.plan.plan`.
        model: the planned model.

    Returns:
        ``verdict``; ``vllm``: its version; ``figures``: ``plan`` and ``vllm`` of each of
        :data:`FIGURES` that both have; ``reason``: a message, where the verdict is unknown or vLLM
        does not start.

    Raises:
        UserError: there is no directory for temporary files.
    """
    if data["plan"]["printed"] is None:
        return _unknown(message("plan.check.block_size"))
    if data["plan"]["stages"] > 1:
        return _unknown(message("plan.check.stages"))
    python = find_vllm()
    if isinstance(python, Message):
        return _unknown(python)
    found = _ask(python, _task(data, model))
    return _unknown(found) if isinstance(found, Message) else _compare(data["plan"], found)


def _unknown(reason: Message) -> dict[str, Any]:
    return {"verdict": "unknown", "vllm": None, "figures": {}, "reason": reason.model_dump()}


def _task(data: Data, model: ModelFacts) -> dict[str, Any]:
    plan, setup, vllm = data["plan"], data["setup"], data["plan"]["vllm"]
    dtype = setup["model"]["dtype"]
    return {
        "name": model.name,
        "config": _without_code(language_model(model.config)),
        "dtype": dtype if ELEMENT_BYTES.get(dtype, 0) > 1 else "bfloat16",
        "kv": "fp8" if setup["kv_dtype"] == "float8" else "auto",
        "ranks": plan["gpus"],
        "block_size": plan["block_size"],
        "bytes": plan["budget"]["kv"] // plan["gpus"],
        "max_length": plan["max_length"],
        "batched": vllm["max_num_batched_tokens"],
        "async": vllm["async_scheduling"],
        "caching": vllm["prefix_caching"],
    }


def language_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the language model alone: vLLM's multimodal classes need image libraries."""
    nested = config.get("text_config")
    inner = nested if isinstance(nested, Mapping) else config
    kind = str(inner.get("model_type"))
    filled = _FILLED.get(kind, {})
    if kind not in _LANGUAGE_MODELS:
        return {**filled, **config}
    named = {"model_type": _RENAMED.get(kind, kind), "architectures": [_LANGUAGE_MODELS[kind]]}
    return {**filled, **inner, **named}


def _without_code(value: Any) -> Any:
    """A config without fields that name code, files or repositories, at any depth."""
    if isinstance(value, Mapping):
        kept = (key for key in value if not _LEFT_OUT.fullmatch(key.lstrip("_")))
        return {key: _without_code(value[key]) for key in kept}
    return [_without_code(each) for each in value] if isinstance(value, list) else value


def _ask(python: str, task: dict[str, Any]) -> LayoutFound | Message:
    """What vLLM finds, or why it finds nothing."""
    with scratch_directory() as place:
        child = Child(
            WORKER, task, place / "check.log", _TIMEOUT_S, {"OMP_NUM_THREADS": "1"}, python
        )
        try:
            with child:
                for event, _ in child.events():
                    if isinstance(event, LayoutFound):
                        return event
                    if isinstance(event, ArmFailed):
                        return event.reason
                return end_reason(child.wait())
        except ChildTimeoutError:
            return message("plan.check.timeout", limit=_TIMEOUT_S)
        except ChildStartError as error:
            return error.text


def _compare(plan: Data, found: LayoutFound) -> dict[str, Any]:
    printed = plan["printed"]
    groups = sorted(group["layers"] for group in plan["layout"]["groups"])
    pairs: dict[str, tuple[Any, Any]] = {"starts": (printed["starts"], found.refused is None)}
    if printed["starts"] and found.refused is None:
        pairs |= {
            "groups": (groups, found.groups),
            "blocks": (printed["blocks"], found.blocks),
            "tokens": (printed["tokens"], found.tokens),
            "concurrency": (printed["max_concurrency"], found.concurrency),
        }
    verdict: Verdict = "same" if all(ours == its for ours, its in pairs.values()) else "different"
    reason = message("plan.check.refused", detail=found.refused) if found.refused else None
    return {
        "verdict": verdict,
        "vllm": found.vllm,
        "figures": {name: {"plan": ours, "vllm": its} for name, (ours, its) in pairs.items()},
        "reason": reason.model_dump() if reason else None,
    }
