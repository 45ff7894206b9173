"""Activations computed by oneDNN at the end of the matrix product before them.

    x ──► c_fc ──► act ──► c_proj            x ──► c_fc + act ──► c_proj

The activation works on the widest tensor of a layer. Fused, it is applied to numbers that are
still in registers; apart, they are written, read and written again.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import NewGELUActivation

from experiment.engine.cpu.packed_layers import PackedLinear

# What Transformers calls a layer and the activation of its output, where a module has both. Names
# promise nothing, so each module is tried.
_PAIRS = (("c_fc", "act"), ("gate_proj", "act_fn"), ("dense_h_to_4h", "act"), ("fc_in", "act"))
# What oneDNN calls an activation: an operation and its variant.
_OPERATIONS = {
    "NewGELUActivation": ("gelu", "tanh"),
    "GELUTanh": ("gelu", "tanh"),
    "GELUActivation": ("gelu", "none"),
    "SiLUActivation": ("swish", ""),
    "SiLU": ("swish", ""),
    "ReLU": ("relu", ""),
}
_TOLERANCE = 1e-5  # of the largest number
_ROWS = (8, 64)  # few and many: they take different ways


def fuse_activations(model: torch.nn.Module) -> tuple[int, int]:
    """Hand activations to the packed layers before them.

    A GELU that is not fused becomes torch's own: Transformers' is the same formula in eight
    operations.

    Returns:
        How many were fused, and how many GELUs were replaced.
    """
    fused = gelus = 0
    for module in list(model.modules()):
        for layer, activation in _PAIRS:
            if isinstance(getattr(module, layer, None), PackedLinear):
                fused += _fuse(module, layer, activation)
        for name, child in list(module.named_children()):
            if type(child) is NewGELUActivation:
                setattr(module, name, torch.nn.GELU(approximate="tanh"))
                gelus += 1
    return fused, gelus


@torch.inference_mode()
def _fuse(module: Any, layer: str, activation: str) -> bool:
    """Fuse, unless the module then computes something else.

    A module may want more than its input, or other operations than this torch has: then nothing
    is known of it, and it stays as it is.
    """
    plain, linear = getattr(module, activation, None), getattr(module, layer)
    post = _OPERATIONS.get(type(plain).__name__)
    if post is None:
        return False
    generator = torch.Generator().manual_seed(0)
    tried = [torch.randn(rows, linear.in_features, generator=generator) for rows in _ROWS]
    before = [_output(module, x) for x in tried]
    if any(each is None for each in before):
        return False
    linear.post = post
    setattr(module, activation, torch.nn.Identity())
    after = [_output(module, x) for x in tried]
    if all(map(_alike, after, before)):
        return True
    linear.post = PackedLinear.post
    setattr(module, activation, plain)
    return False


def _alike(after: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    if after is None or before is None or after.shape != before.shape:
        return False
    return bool((after - before).abs().max() <= _TOLERANCE * before.abs().max())


def _output(module: Any, x: torch.Tensor) -> torch.Tensor | None:
    """What a module gives for ``x`` alone; None where that is no tensor, or it cannot."""
    try:
        given = module(x)
    except Exception:  # whatever a module of somebody else's raises
        return None
    return given if isinstance(given, torch.Tensor) else None
