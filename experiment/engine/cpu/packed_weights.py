"""Pack weights in the order in which oneDNN reads them: CPU, float32.

    weight [outputs, inputs]     packed [panels, inputs, width], here of width 4 (64 on most)
    o0  a b c d
    o1  e f g h                  panel 0    a e i m   b f j n   c g k o   d h l p
    o2  i j k l         ──►      panel 1    q . . .   r . . .   s . . .   t . . .
    o3  m n o p                               └ padding
    o4  q r s t

A matrix product of a decode step has few rows and reads every weight once. A packed panel is read
sequentially for all rows, and the weights of one instruction are adjacent. Few rows use
:mod:`experiment.engine.cpu.panel_products` if available.

The packed copy replaces the weight, which is released before the next one is packed, so that only
one weight is held twice. The rows of a tied embedding table are read from the panels.

These operations of torch are private, so they are first tried on a small product. If that fails,
nothing is packed and the reason is reported.

MKL's packed product silently falls back to the plain one for other numbers of rows than the one it
was packed for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from experiment.engine.cpu.few_rows import PanelProducts
from experiment.engine.cpu.mapped_pages import release_pages
from experiment.engine.cpu.packed_layers import PackedEmbedding, PackedLinear
from experiment.engine.cpu.panels import matches_linear, pack, panels_of, trial_operands
from experiment.text.errors import one_line
from experiment.text.messages import Message, message

# Linear layers, and GPT-2's with a transposed weight; no subclasses.
_LINEAR = (torch.nn.Linear, Conv1D)

_ops: Any = torch.ops.mkldnn


@dataclass(frozen=True, slots=True)
class Packing:
    """Result of packing a model; see :class:`experiment.events.WeightsPacked`."""

    layers: int = 0
    kept: int = 0
    few_rows: int = 0
    embeddings: int = 0
    gelus: int = 0
    seconds: float | None = None
    bytes: int = 0
    reason: Message | None = None


def pack_weights(model: torch.nn.Module) -> Packing:
    """Replace the linear layers of ``model`` by packed ones, one at a time.

    A layer that cannot be packed without holding a weight twice is kept. Nothing is packed unless
    all weights are float32 on a CPU and oneDNN works; then ``Packing.reason`` says why.
    """
    reason = _reason_against(model)
    if reason is not None:
        return Packing(reason=reason)
    few_rows = PanelProducts()  # may compile, so before the clock starts
    began = time.perf_counter()
    layers = kept = 0
    users, names = _users(model), _names(model)
    while users:
        weight_users = users.pop(next(iter(users)))
        linear = [module for module in weight_users if type(module) in _LINEAR]
        if not linear:
            continue
        if all(map(_replaceable, weight_users)) and _replace(model, weight_users, names, few_rows):
            layers += len(linear)
        else:
            kept += len(linear)
        del weight_users, linear  # release the weight before the next one is packed
    _copy_unpacked(model)
    gelus, spans = _replace_gelus(model), _spans(model)
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


def _replace_gelus(model: torch.nn.Module) -> int:
    """Replace Transformers' GELU by torch's, the same formula in one operation; return how many."""
    found = model.named_modules(remove_duplicate=False)
    gelus = [name for name, module in found if type(module) is NewGELUActivation]
    for name in gelus:
        model.set_submodule(name, torch.nn.GELU(approximate="tanh"))
    return len(gelus)


def _spans(model: torch.nn.Module) -> set[tuple[int, int]]:
    """Address ranges of the packed weights; a tied one once."""
    packed = (module.packed for module in model.modules() if isinstance(module, PackedLinear))
    begun = ((_ops.data_ptr(weight), _ops._nbytes(weight)) for weight in packed)
    return {(address, address + size) for address, size in begun}


def _replace(
    model: torch.nn.Module, users: list[Any], names: dict[int, list[str]], few_rows: PanelProducts
) -> bool:
    """Replace all users of a weight by packed modules, and release the weight."""
    # The model itself cannot be replaced.
    replaceable = all(map(all, (names[id(module)] for module in users)))
    made = _packed_modules(users, few_rows) if replaceable else None
    if made is None:
        return False
    weight = users[0].weight
    for module, new in zip(users, made, strict=True):
        for name in names.pop(id(module)):
            model.set_submodule(name, new)
    release_pages(weight)
    return True


def _packed_modules(users: list[Any], few_rows: PanelProducts) -> list[torch.nn.Module] | None:
    """A packed module for each user of a weight; None if it cannot be packed or read back."""
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


def _reason_against(model: torch.nn.Module) -> Message | None:
    kinds = {(p.dtype, p.device.type) for p in model.parameters()}
    if kinds != {(torch.float32, "cpu")}:
        return message("packing.kind")
    backend: Any = torch.backends.mkldnn
    if not backend.is_available():
        return message("packing.no_onednn")
    return _trial()


@torch.inference_mode()
def _trial() -> Message | None:
    """Compare a packed product with torch's; return why it cannot be used, or None."""
    x, weight, bias = trial_operands()
    outputs, inputs = weight.shape
    try:
        packed = pack(weight)
        panels_of(packed, weight)
        ours = PackedLinear(packed, bias, outputs, inputs)(x)
    except Exception as error:  # depends on the version of torch
        return message("packing.fails", detail=one_line(error))
    return None if matches_linear(ours, x, weight, bias) else message("packing.wrong")


def _users(model: torch.nn.Module) -> dict[int, list[Any]]:
    """Modules that use a linear layer's weight as their own parameter, by id of the weight."""
    users: dict[int, list[Any]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(module)
    wanted = {id(module.weight) for module in model.modules() if type(module) in _LINEAR}
    return {key: some for key, some in users.items() if key in wanted}


def _names(model: torch.nn.Module) -> dict[int, list[str]]:
    """Names of each module, by its id."""
    names: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
    return names


def _replaceable(module: torch.nn.Module) -> bool:
    if type(module) is torch.nn.Embedding:
        return module.max_norm is None
    return type(module) in _LINEAR


def _rows_are_outputs(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    return weight.t() if type(module) is Conv1D else weight


def _copy_unpacked(model: torch.nn.Module) -> None:
    """Copy unpacked tensors: one tensor mapped from the file would keep all of it mapped."""
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_mkldnn:
            tensor.data = tensor.data.clone()
