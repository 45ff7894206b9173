"""The number of weights that a config describes, counted by Transformers without memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiment.text.errors import UserError
from kvsim.sizing.fields import first_named, text_config

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_NOT_OF_SHAPE = ("dtype", "torch_dtype", "quantization_config")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "top_k_experts")


def count_parameters(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Count the weights of the language model of a config.json.

    Returns:
        ``parameters``, tied ones once, ``expert_parameters`` of them, ``active_parameters`` that a
        token uses; None: Transformers has no such class.
    """
    from transformers import AutoConfig

    from experiment.model.facts import build_empty

    text = {key: value for key, value in text_config(config).items() if key not in _NOT_OF_SHAPE}
    try:
        made = AutoConfig.for_model(text.pop("model_type", ""), **text)
        built: Any = build_empty(made, "", "eager")
    except (UserError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    sizes = {name: weight.numel() for name, weight in built.named_parameters()}
    total = sum(sizes.values())
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    values = made.to_dict()
    number, used = (first_named(values, *names) for names in (EXPERTS, _EXPERTS_PER_TOKEN))
    active = total - experts + experts * int(used or 1) // int(number or 1)
    return {
        "parameters": total,
        "active_parameters": active,
        "expert_parameters": experts,
    }
