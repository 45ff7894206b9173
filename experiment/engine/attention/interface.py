"""Our attention function for Transformers' attention interface.

A model loaded with ``attn_implementation=ATTENTION`` calls :func:`paged_attention` in each layer
with the queries, keys and values of this step. They are written to the pool, and attention reads
all earlier ones through the block tables. Layers, weights, positions and output projection are the
model's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from experiment.engine.attention.kernels import Kernel
from experiment.engine.kv_pool import KVPool
from experiment.engine.step_inputs import StepInputs
from experiment.text.errors import UserError, user_error

ATTENTION = "pagedkv"
# Reported for a model that does not call the registered function.
NO_INTERFACE = "attention_interface"
# Arguments of Transformers' interface without effect on a packed causal step.
_HARMLESS = frozenset(
    {"position_ids", "use_cache", "cache_position", "is_causal", "output_attentions"}
)


class UnsupportedModelError(Exception):
    """The model uses an attention feature that the engine does not implement."""

    def __init__(self, feature: str) -> None:
        super().__init__(feature)
        self.feature = feature

    def refusal(self, model: str) -> UserError:
        """The user error for the model ``model``."""
        if self.feature in (NO_INTERFACE, "paged_step"):
            return user_error("error.model.attention_interface", model=model)
        return user_error("error.model.attention", model=model, feature=self.feature)


@dataclass(slots=True)
class PagedStep:
    """Passed through the model's forward pass as the keyword ``paged_step``."""

    pool: KVPool
    inputs: StepInputs
    kernel: Kernel
    calls: list[int] = field(default_factory=list)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    paged_step: PagedStep | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of one layer for one packed step, for Transformers' attention interface.

    Args:
        query: [1, heads, tokens, head_dim].
        key: [1, kv_heads, tokens, head_dim]; value likewise.

    Returns:
        [1, tokens, heads, head_dim], and no weights.

    Raises:
        UnsupportedModelError: the model passes an argument that would change the result and is not
            implemented.
    """
    step = _require_step(paged_step, attention_mask, dropout, others)
    check_shape(step.pool, key, value)
    layer = module.layer_idx
    assert isinstance(layer, int)
    step.calls.append(layer)
    q, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    step.pool.write(layer, step.inputs, keys, values)
    return step.kernel(q, step.pool.layer(layer), step.inputs, scale)[None], None


def check_shape(pool: KVPool, key: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse keys and values [1, kv_heads, tokens, head_dim] of another shape than the pool's.

    Raises:
        UnsupportedModelError: the config describes another cache than the model fills.
    """
    heads, _, dim = pool.kv.shape[3:]
    if {(each.shape[1], each.shape[3]) for each in (key, value)} != {(heads, dim)}:
        raise UnsupportedModelError("kv_shape")


def _require_step(
    step: PagedStep | None,
    mask: torch.Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> PagedStep:
    if step is None:
        raise UnsupportedModelError("paged_step")  # the model drops keyword arguments
    if mask is not None:
        raise UnsupportedModelError("attention_mask")
    if dropout:
        raise UnsupportedModelError("dropout")
    for name, value in others.items():
        if name in _HARMLESS or value is None or value is False:
            continue
        # A window that is longer than all sequences has no effect.
        if name != "sliding_window" or value < step.inputs.longest:
            raise UnsupportedModelError(name)
    return step


AttentionInterface.register(ATTENTION, paged_attention)
