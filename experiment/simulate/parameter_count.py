"""The number of weights that a config describes, counted by Transformers without memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from experiment.text.errors import one_line
from kvsim.sizing.fields import first_named, text_config

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts",
)  # fmt: skip
_MOST_REASON = 100  # characters of Transformers' reason
# Fields that say nothing of shapes; ``auto_map`` names code of the config's author.
_NOT_OF_SHAPE = ("auto_map", "_name_or_path", "dtype", "torch_dtype", "quantization_config")


def count_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Count the weights of the language model of a config.json.

    Returns:
        ``parameters``, tied ones once, ``expert_parameters`` of them, ``active_parameters`` that a
        token uses.

    Raises:
        ValueError: why not: Transformers cannot build it, or experts per token are unknown.
    """
    text = {key: value for key, value in text_config(config).items() if key not in _NOT_OF_SHAPE}
    kind = str(text.get("model_type"))
    sizes, values = _sizes(text)
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    number, used = (first_named(values, *names) for names in (EXPERTS, _EXPERTS_PER_TOKEN))
    known = isinstance(number, int) and isinstance(used, int) and 0 < used <= number
    if not total or (experts and not known):
        raise ValueError(_EXPERTS_PER_TOKEN[0] if total else kind)
    return {
        "parameters": total,
        "active_parameters": total - experts + (experts * used // number if known else 0),
        "expert_parameters": experts,
    }


def _sizes(text: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """Elements of each weight, and the fields with their defaults.

    Raises:
        ValueError: it cannot be built.
    """
    from transformers import AutoConfig
    from transformers.utils import logging

    from experiment.model.facts import build_empty

    shown = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            made = AutoConfig.for_model(text.pop("model_type", ""), **text)
            built = build_empty(made, "", "eager")
    except Exception as error:  # whatever the author of a config class chose
        raise ValueError(one_line(error, _MOST_REASON)) from error
    finally:
        logging.set_verbosity(shown)
    return {name: weight.numel() for name, weight in built.named_parameters()}, made.to_dict()
