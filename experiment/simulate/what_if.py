"""What the sliders of a plan's page compute with: a layout for each block size and KV dtype.

``report/templates/what_if.js`` computes the rest from it for any context and number of users, by
the rules of :mod:`kvsim.sizing.layout` and :mod:`kvsim.planning.capacity`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from experiment.simulate.setup import Memory
from kvsim.planning.plan import BLOCK_SIZES, PlanQuestion
from kvsim.sizing.layout import LayoutError
from kvsim.sizing.vllm_capacity import GPU_BLOCK_MULTIPLE

_LEAST_CONTEXT, _MOST_USERS = 256, 1024
_SIZES = ("low", "middle", "high")


def what_if(
    question: PlanQuestion, memory: Memory, capacity: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the positions of the sliders, and what the page computes with.

    Args:
        capacity: of the plan, with the KV bytes on all GPUs.

    Returns:
        ``positions`` of each slider; ``start``, the plan's own; ``engines``; ``chunk``, tokens of a
        step, and ``in_flight``, of those that are not settled; ``max_length``, tokens, where it is
        not the context; ``layouts`` by block size and KV dtype. None where vLLM does not take the
        plan's block size, and for its engine V0, whose steps grow with the maximum length.
    """
    model, max_length = question.model, question.longest()
    own = question.block_size or model.block_size
    if own % GPU_BLOCK_MULTIPLE or not question.options.is_v1(question.gpu):
        return None
    dtypes = {name: replace(memory, kv_dtype=name).kv_dtype_of(model) for name in ("auto", "fp8")}
    sizes = {own, *(size for size in BLOCK_SIZES if size % model.block_size == 0)}
    layouts = {}
    for size in sorted(sizes):
        asked = replace(question, block_size=size)
        with suppress(LayoutError):
            layouts[str(size)] = {
                name: _layout(replace(asked, kv_dtype=dtype), max_length, capacity)
                for name, dtype in dtypes.items()
            }
    if str(own) not in layouts:
        return None
    context, fitting = capacity["length"], capacity["low"]["requests"]
    engines = question.options.data_parallel
    users = capacity["users"] or max(1, min(fitting, capacity["max_num_seqs"] * engines))
    positions = model.max_positions or max(context, max_length)
    return {
        "positions": {
            "context": _steps(_LEAST_CONTEXT, positions, context),
            "users": _steps(1, _MOST_USERS, users),
            "block_size": [*map(int, layouts)],
            "kv_dtype": [*dtypes],
        },
        "start": {
            "context": context,
            "users": users,
            "block_size": own,
            "kv_dtype": "fp8" if (memory.kv_dtype or "").startswith("fp8") else "auto",
        },
        "engines": engines,
        "chunk": question.service(max_length).max_num_batched_tokens,
        "in_flight": question.service(max_length).in_flight,
        "max_length": max_length if max_length != context else None,
        "layouts": layouts,
    }


def _steps(least: int, most: int, own: int) -> list[int]:
    """Powers of two and three values between each pair, from least to most, and ``own``."""
    steps = {
        (quarters << power) // 4 for power in range(most.bit_length()) for quarters in (4, 5, 6, 7)
    }
    return sorted({own, most, *(step for step in steps if least <= step <= most)})


def _layout(question: PlanQuestion, max_length: int, capacity: Mapping[str, Any]) -> dict[str, Any]:
    """Blocks of the pool for each size of the cache, bytes of a block on all GPUs, and groups."""
    _, layout = question.layers()
    service = question.service(max_length)
    firsts = [group.cache[0] for group in layout.groups]
    alike = Counter((one.kind, one.block_size, one.span, one.states) for one in firsts)
    return {
        "block_bytes": layout.block_bytes * question.gpus,
        "blocks": {
            name: layout.capacity(capacity[name]["kv"] // question.gpus, service).blocks
            for name in _SIZES
        },
        "groups": [
            {"count": count, "kind": kind, "block_size": size, "span": span, "states": states}
            for (kind, size, span, states), count in alike.items()
        ],
    }
