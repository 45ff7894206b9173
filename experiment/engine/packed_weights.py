"""Weights in the order in which oneDNN reads them, instead of the model's own: CPU, float32.

    weight [outputs, inputs]     packed [panels, inputs, width], here of width 4 (64 with AVX-512)
    o0  a b c d
    o1  e f g h                  panel 0    a e i m   b f j n   c g k o   d h l p
    o2  i j k l         ──►      panel 1    q . . .   r . . .   s . . .   t . . .
    o3  m n o p                               └ filled up
    o4  q r s t

A matrix product of a decode step has few rows and reads every weight once. Packed, a panel is read
front to back for all rows, and the weights that one instruction multiplies lie side by side. The
packed copy takes the place of the weight, which is given back: nothing is held twice. Where an
embedding table is tied to the output projection, its rows are read from the panels.

MKL's packed product is no choice here: it falls back to the plain one without a word whenever the
number of rows is not the one it packed for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from experiment.engine.fused_activation import fuse_activations
from experiment.engine.packed_layers import PackedEmbedding, PackedLinear

# oneDNN is told for how many rows to choose the layout; those of a decode step.
_TYPICAL_ROWS = 16
# Outputs in a panel, with AVX-512 and with narrower instructions.
_WIDTHS = (64, 48, 32, 24, 16, 8)

_ops: Any = torch.ops.mkldnn


def pack_weights(model: torch.nn.Module) -> int:
    """Replace the linear layers of ``model`` by packed ones; returns how many.

    What cannot be packed without holding a weight twice stays as it is, and all of it where the
    weights are not in float32 on a CPU, or torch is without oneDNN.
    """
    if not _possible(model):
        return 0
    replaced: dict[int, torch.nn.Module] = {}
    tables, kept = _embeddings(model), _kept(model)
    packed: dict[int, torch.Tensor] = {}
    for module in list(_linear_layers(model)):
        weight = module.weight
        if id(weight) in kept:
            continue
        if id(weight) not in packed:
            content = pack(_rows_are_outputs(module))
            embeddings = tables.get(id(weight), [])
            panels = panels_of(content, weight) if embeddings else None
            if embeddings and panels is None:
                continue
            packed[id(weight)] = content
            for embedding in embeddings:
                assert panels is not None
                replaced[id(embedding)] = PackedEmbedding(content, panels)
        outputs, inputs = _rows_are_outputs(module).shape
        replaced[id(module)] = PackedLinear(packed[id(weight)], module.bias, outputs, inputs)
    _replace(model, replaced)
    _leave_the_file(model)
    fuse_activations(model)
    return sum(isinstance(module, PackedLinear) for module in replaced.values())


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight [outputs, inputs] into oneDNN's order; only oneDNN knows what to do with it."""
    packed: torch.Tensor = _ops._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    return packed


def panels_of(packed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """The memory of a packed weight as [panels, inputs, width]; None where it is in other order.

    oneDNN does not promise an order, so each number is compared. The result holds no memory of
    its own: ``packed`` must live as long.
    """
    outputs, inputs = weight.shape
    count = _ops._nbytes(packed) // weight.element_size()
    memory = (ctypes.c_float * count).from_address(_ops.data_ptr(packed))
    flat = torch.from_numpy(np.ctypeslib.as_array(memory))
    for width in _WIDTHS:
        if count != -(-outputs // width) * width * inputs:
            continue
        panels = flat.view(-1, inputs, width)
        if torch.equal(panels.transpose(1, 2).reshape(-1, inputs)[:outputs], weight):
            return panels
    return None


def _possible(model: torch.nn.Module) -> bool:
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return False
    kinds = {(p.dtype, p.device.type) for p in model.parameters()}
    return kinds == {(torch.float32, "cpu")}


def _linear_layers(model: torch.nn.Module) -> Iterator[Any]:
    """Linear layers and GPT-2's, which hold their weight the other way round; no subclasses."""
    for module in model.modules():
        if type(module) in (torch.nn.Linear, Conv1D):
            yield module


def _embeddings(model: torch.nn.Module) -> dict[int, list[torch.nn.Module]]:
    """Everything but linear layers that uses a weight, by the weight."""
    users: dict[int, list[torch.nn.Module]] = {}
    for module in model.modules():
        if type(module) is torch.nn.Embedding and _replaceable(module):
            users.setdefault(id(module.weight), []).append(module)
    return users


def _kept(model: torch.nn.Module) -> set[int]:
    """Weights that some module needs as they are, such as Gemma's embedding, which scales rows."""
    return {
        id(parameter)
        for module in model.modules()
        if not _replaceable(module)
        for parameter in module.parameters(recurse=False)
    }


def _replaceable(module: torch.nn.Module) -> bool:
    if type(module) is torch.nn.Embedding:
        return module.max_norm is None
    return type(module) in (torch.nn.Linear, Conv1D)


def _rows_are_outputs(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    return weight.t() if type(module) is Conv1D else weight


def _replace(model: torch.nn.Module, replaced: dict[int, torch.nn.Module]) -> None:
    """Put new modules into their places."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in replaced:
                setattr(parent, name, replaced[id(child)])


def _leave_the_file(model: torch.nn.Module) -> None:
    """Copy what was not packed, norms and positions: one tensor of a mapped file holds it all."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_mkldnn:
            tensor.data = tensor.data.clone()
