"""Weights in the order in which oneDNN reads them, instead of the model's own: CPU, float32.

    weight [outputs, inputs]     packed [panels, inputs, width], here of width 4 (64 on most)
    o0  a b c d
    o1  e f g h                  panel 0    a e i m   b f j n   c g k o   d h l p
    o2  i j k l         ──►      panel 1    q . . .   r . . .   s . . .   t . . .
    o3  m n o p                               └ filled up
    o4  q r s t

A matrix product of a decode step has few rows and reads every weight once. Packed, a panel is read
front to back for all rows, and the weights that one instruction multiplies lie side by side. Few
rows are multiplied by :mod:`experiment.engine.cpu.panel_products` where that can be.

The packed copy takes the place of the weight, which is given back before the next one is packed:
none but the weight at hand is ever held twice. Where an embedding table is tied to the output
projection, its rows are read from the panels.

These operations of torch's are private, so they are tried on a small product first. Where that
fails the weights stay as they are, and the reason is told.

MKL's packed product is no choice here: it falls back to the plain one without a word whenever the
number of rows is not the one it packed for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from experiment.engine.cpu.few_rows import FewRows
from experiment.engine.cpu.mapped_pages import give_back
from experiment.engine.cpu.packed_layers import PackedEmbedding, PackedLinear
from experiment.engine.cpu.panels import is_product, known, pack, panels_of
from experiment.model.load import one_line
from experiment.text.messages import Message, message

# Linear layers and GPT-2's, which hold their weight the other way round; no subclasses.
_LINEAR = (torch.nn.Linear, Conv1D)

_ops: Any = torch.ops.mkldnn


@dataclass(frozen=True, slots=True)
class Packing:
    """What became of a model's weights; see :class:`experiment.events.WeightsPacked`."""

    layers: int = 0
    kept: int = 0
    few_rows: int = 0
    embeddings: int = 0
    gelus: int = 0
    seconds: float | None = None
    bytes: int = 0
    reason: Message | None = None

    def facts(self) -> dict[str, Any]:
        """As the event has them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def pack_weights(model: torch.nn.Module) -> Packing:
    """Replace the linear layers of ``model`` by packed ones, one after another.

    What cannot be packed without holding a weight twice stays as it is, and all of it where the
    weights are not in float32 on a CPU, or torch is without oneDNN, or its operations fail.
    """
    reason = _why_not(model)
    if reason is not None:
        return Packing(reason=reason)
    few_rows = FewRows()  # compiles, where nobody has: that is no packing
    began = time.perf_counter()
    layers = kept = 0
    users, places = _users(model), _places(model)
    while users:
        weight_users = users.pop(next(iter(users)))
        linear = [module for module in weight_users if type(module) in _LINEAR]
        if not linear:
            continue
        if all(map(_replaceable, weight_users)) and _replace(weight_users, places, few_rows):
            layers += len(linear)
        else:
            kept += len(linear)
        del weight_users, linear  # else the weight would live until the next one is packed
    _leave_the_file(model)
    gelus, spans = _plain_gelus(model), _spans(model)
    return Packing(
        layers=layers,
        kept=kept,
        few_rows=sum(
            isinstance(m, PackedLinear) and m.few_rows is not None for m in model.modules()
        ),
        embeddings=sum(isinstance(module, PackedEmbedding) for module in model.modules()),
        gelus=gelus,
        bytes=sum(end - begin for begin, end in spans),
        seconds=time.perf_counter() - began,
    )


def _plain_gelus(model: torch.nn.Module) -> int:
    """Replace Transformers' GELU by torch's, which is the same formula in one operation."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is NewGELUActivation
    ]
    for parent, name in found:
        setattr(parent, name, torch.nn.GELU(approximate="tanh"))
    return len(found)


def _spans(model: torch.nn.Module) -> set[tuple[int, int]]:
    """Where the packed weights lie; a tied one once."""
    packed = (module.packed for module in model.modules() if isinstance(module, PackedLinear))
    begun = ((_ops.data_ptr(weight), _ops._nbytes(weight)) for weight in packed)
    return {(address, address + size) for address, size in begun}


def _replace(
    users: list[Any],
    places: dict[int, list[tuple[torch.nn.Module, str]]],
    few_rows: FewRows,
) -> bool:
    """Put packed modules into the places of all users of a weight, and give the weight back."""
    made = (
        _packed_modules(users, few_rows) if all(id(module) in places for module in users) else None
    )
    if made is None:
        return False
    weight = users[0].weight
    for module, new in zip(users, made, strict=True):
        for parent, name in places.pop(id(module)):
            setattr(parent, name, new)
    give_back(weight)
    return True


def _packed_modules(users: list[Any], few_rows: FewRows) -> list[torch.nn.Module] | None:
    """A packed module for each user of a weight; None where that cannot be, or not be read."""
    linear = next(module for module in users if type(module) in _LINEAR)
    weight = _rows_are_outputs(linear)
    try:
        packed = pack(weight)
        table = any(type(module) is torch.nn.Embedding for module in users)
        panels = panels_of(packed, weight) if table else None
        if table and panels is None:
            return None
    except (RuntimeError, AttributeError):
        return None
    outputs, inputs = weight.shape
    made: list[torch.nn.Module] = []
    for module in users:
        if type(module) is torch.nn.Embedding:
            assert panels is not None
            made.append(PackedEmbedding(packed, panels, outputs))
        else:
            few = few_rows.product(packed, weight, module.bias, panels)
            made.append(PackedLinear(packed, module.bias, outputs, inputs, few))
    return made


def _why_not(model: torch.nn.Module) -> Message | None:
    kinds = {(p.dtype, p.device.type) for p in model.parameters()}
    if kinds != {(torch.float32, "cpu")}:
        return message("packing.kind")
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return message("packing.no_onednn")
    return _try_once()


@torch.inference_mode()
def _try_once() -> Message | None:
    """Why torch's private operations cannot be used, by a product that is known otherwise."""
    x, weight, bias = known()
    outputs, inputs = weight.shape
    try:
        packed = pack(weight)
        panels_of(packed, weight)
        ours = PackedLinear(packed, bias, outputs, inputs)(x)
    except Exception as error:  # another torch may have other operations, or none
        return message("packing.fails", detail=one_line(error))
    return None if is_product(ours, x, weight, bias) else message("packing.wrong")


def _users(model: torch.nn.Module) -> dict[int, list[Any]]:
    """All modules that hold a weight of a linear layer as their own, by the weight."""
    users: dict[int, list[Any]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    wanted = {id(module.weight) for module in _linear_layers(model)}
    return {key: some for key, some in users.items() if key in wanted}


def _places(model: torch.nn.Module) -> dict[int, list[tuple[torch.nn.Module, str]]]:
    """Where each module stands: its parents, and its name there."""
    places: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            places.setdefault(id(child), []).append((parent, name))
    return places


def _linear_layers(model: torch.nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if type(module) in _LINEAR:
            yield module


def _replaceable(module: torch.nn.Module) -> bool:
    if type(module) is torch.nn.Embedding:
        return module.max_norm is None
    return type(module) in _LINEAR


def _rows_are_outputs(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    return weight.t() if type(module) is Conv1D else weight


def _leave_the_file(model: torch.nn.Module) -> None:
    """Copy what was not packed, norms and positions: one tensor of a mapped file holds it all."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_mkldnn:
            tensor.data = tensor.data.clone()
