"""Compute the last layer's feed-forward part only for rows that sample a token.

    last layer     attention over all rows of a prompt ── its keys and values are needed
                   feed-forward part: only for sampling rows

It has most of a layer's weights: an eighteenth of GPT-2's products over a prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

from experiment.engine.cpu.packed_layers import PackedLinear

_LAYERS = (
    torch.nn.Linear,
    Conv1D,
    PackedLinear,
    torch.nn.Dropout,
    torch.nn.Identity,
    torch.nn.GELU,
)


def last_feed_forward(model: torch.nn.Module) -> torch.nn.Module | None:
    """Feed-forward part of the last layer, if it treats rows independently.

    None for a mixture of experts, and if the layer has no ``mlp`` beside the attention.
    """
    found = [
        (int(layer), parent)
        for parent in model.modules()
        for child in parent.children()
        if isinstance(layer := getattr(child, "layer_idx", None), int)
    ]
    if not found:
        return None
    part = getattr(max(found, key=lambda each: each[0])[1], "mlp", None)
    return part if isinstance(part, torch.nn.Module) and _by_rows(part) else None


def _by_rows(part: torch.nn.Module) -> bool:
    kinds = {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
    known = (*_LAYERS, *(kind for kind in kinds if isinstance(kind, type)))
    leaves = [m for m in part.modules() if m is not part]
    return bool(leaves) and all(isinstance(leaf, known) for leaf in leaves)


@contextmanager
def on_rows(part: torch.nn.Module | None, rows: torch.Tensor, tokens: int) -> Iterator[None]:
    """Let a module compute only ``rows`` of its [1, tokens, width] input; the others become zero.

    No effect without a module, or if ``rows`` are more than half of the tokens.
    """
    if part is None or 2 * len(rows) > tokens:
        yield
        return
    whole = part.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        if len(rows):
            out[:, rows] = whole(x[:, rows])
        return out

    part.forward = forward
    try:
        yield
    finally:
        del part.forward  # restores the method of the class
