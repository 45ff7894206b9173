"""The memory of a packed weight, and a product that is known another way to try it with."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling

# oneDNN is told for how many rows to choose the layout; those of a decode step.
_TYPICAL_ROWS = 16
# Outputs in a panel, by what oneDNN finds best for the processor.
_WIDTHS = (64, 48, 32, 24, 16, 8)
# Panels that are compared together: a copy of them is made for it.
_AT_ONCE = 16
# Rows, outputs and inputs of the product that is tried: a panel that is not full, and fewer rows
# than the least that oneDNN is given.
_TRIED = (3, 97, 48)

_ops: Any = torch.ops.mkldnn


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight [outputs, inputs] into oneDNN's order; only oneDNN knows what to do with it."""
    packed: torch.Tensor = _ops._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    return packed


def panels_of(packed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """The memory of a packed weight as [panels, inputs, width]; None where it is in other order.

    oneDNN does not promise an order, so each number is compared; where inputs are no multiple of
    16, it is another one. The result holds no memory of its own: ``packed`` must live as long.
    """
    for width in _WIDTHS:
        panels = panels_if(packed, weight.shape, width)
        if panels is None:
            continue
        pairs = zip(
            torch.split(panels, _AT_ONCE), torch.split(weight, _AT_ONCE * width), strict=True
        )
        if all(torch.equal(_rows(some)[: len(rows)], rows) for some, rows in pairs):
            return panels
    return None


def panels_if(packed: torch.Tensor, shape: torch.Size, width: int) -> torch.Tensor | None:
    """The same without looking: None where panels of that width would not fill the memory."""
    outputs, inputs = shape
    count = _ops._nbytes(packed) // 4
    if count != -(-outputs // width) * width * inputs:
        return None
    memory = (ctypes.c_float * count).from_address(_ops.data_ptr(packed))
    return torch.from_numpy(np.ctypeslib.as_array(memory)).view(-1, inputs, width)


def _rows(panels: torch.Tensor) -> torch.Tensor:
    """Panels as [outputs, inputs], copied."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])


def known() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, a weight and a bias whose product :func:`is_product` knows."""
    rows, outputs, inputs = _TRIED
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, inputs, generator=generator) for n in (outputs, rows))
    return x, weight, torch.randn(outputs, generator=generator)


def is_product(
    ours: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> bool:
    """Whether ``ours`` is what torch's own product gives for them."""
    plain = F.linear(x, weight, bias)
    return ours.shape == plain.shape and torch.allclose(ours, plain, atol=1e-4)
