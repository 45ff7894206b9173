"""Plans of well-known models on well-known GPUs, compact enough for one page.

    MODELS x GPUS x COUNTS ─► what fits, or why nothing does ─► the planner of the site

The page chooses one and moves its sliders, see :mod:`experiment.simulate.what_if`.
"""

from __future__ import annotations

import json
from typing import Any

from experiment.simulate.fit import Question, fit
from experiment.simulate.names import model_of
from experiment.simulate.setup import Memory
from experiment.simulate.what_if import what_if
from experiment.text.errors import UserError

MODELS = (
    "gpt2", "llama-3.1-8b", "llama-3.3-70b", "llama-3.1-405b", "llama-3.2-3b", "llama-4-scout",
    "qwen2.5-7b", "qwen2.5-72b", "qwen3-4b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b",
    "qwen3-235b-a22b", "qwen3-next-80b-a3b", "qwen3.5-27b", "mistral-7b-v0.3",
    "mistral-small-24b", "mixtral-8x7b", "gemma-3-12b", "gemma-3-27b", "gemma-4-31b", "phi-4",
    "gpt-oss-20b", "gpt-oss-120b", "glm-4.6", "kimi-k2", "deepseek-v3",
)  # fmt: skip
GPUS = (
    "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "t4", "l4", "a10g", "l40s", "a100-40gb",
    "a100-80gb", "h100", "h200", "b200", "mi300x",
)  # fmt: skip
COUNTS = (1, 2, 4, 8)
START = ("llama-3.1-8b", "rtx-4090", 1)
_CONTEXT = 8192  # tokens; nothing but the sliders' start depends on it


def planner() -> dict[str, Any]:
    """Plan every combination.

    Returns:
        ``gpus``, ``counts``; ``start``: model, GPU and number of GPUs; ``version``, of vLLM;
        ``kv_dtype``, values; ``context``, positions by model; ``layouts``, the distinct ones;
        ``plans`` by model, GPU and place in ``counts``: see :func:`_plan`.
    """
    layouts: dict[str, int] = {}  # numbers of distinct ones
    plans: dict[str, dict[str, list[dict[str, Any]]]] = {}
    shared: dict[str, Any] = {"context": {}, "hub": {}}
    for model in MODELS:
        shared["hub"][model] = model_of(model).hub
        plans[model] = {
            gpu: [_plan(model, gpu, count, layouts, shared) for count in COUNTS] for gpu in GPUS
        }
    return {
        "gpus": GPUS,
        "counts": COUNTS,
        "start": START,
        **shared,
        "layouts": [json.loads(layout) for layout in layouts],
        "plans": plans,
    }


def _plan(
    model: str, gpu: str, count: int, layouts: dict[str, int], shared: dict[str, Any]
) -> dict[str, Any]:
    """One combination.

    Returns:
        ``reason``, a message, or ``budget``: bytes of ``usable``, ``weights``, ``overhead`` and
        the KV cache (``low``, ``middle``, ``high``); ``start`` of the sliders; ``chunk``,
        ``in_flight``, ``max_num_seqs``; ``layouts`` by block size: of each KV dtype its number and
        the blocks at the three sizes.
    """
    memory = Memory(gpus=count)
    positions = model_of(model).max_positions or _CONTEXT
    try:
        fitted = fit(model, gpu, memory, Question(context=min(_CONTEXT, positions)))
        capacity = fitted.capacity()
        found = what_if(fitted.plan, memory, capacity)
    except UserError as error:
        return {"reason": error.text.model_dump()}
    assert found is not None  # of engine V1, with a block size of vLLM's
    shared["context"][model] = found["positions"]["context"]
    shared["kv_dtype"], shared["version"] = found["positions"]["kv_dtype"], capacity["version"]
    budget = fitted.setup.budget
    return {
        "budget": {
            "usable": budget.usable, "weights": budget.weights, "overhead": budget.overhead,
            "low": budget.low, "middle": budget.kv, "high": budget.high,
        },
        "start": found["start"],
        "chunk": found["chunk"],
        "in_flight": found["in_flight"],
        "max_num_seqs": capacity["max_num_seqs"],
        "layouts": {
            size: [
                [layouts.setdefault(
                    json.dumps({k: v for k, v in layout.items() if k != "blocks"}), len(layouts)
                 ), *layout["blocks"].values()]
                for layout in by_dtype.values()
            ]
            for size, by_dtype in found["layouts"].items()
        },
    }  # fmt: skip
