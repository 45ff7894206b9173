"""Access the memory of a packed weight, and verify products with it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling

# Rows for which oneDNN chooses the layout: those of a decode step.
_TYPICAL_ROWS = 16
# Possible outputs of a panel; oneDNN chooses by processor.
_WIDTHS = (64, 48, 32, 24, 16, 8)
# Panels copied and compared at once.
_AT_ONCE = 16
# Rows, outputs and inputs of the trial product: a partial panel, and rows that need padding.
_TRIAL_SHAPE = (3, 97, 48)

_ops: Any = torch.ops.mkldnn


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Copy a weight [outputs, inputs] into oneDNN's order, an opaque tensor."""
    packed: torch.Tensor = _ops._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
    return packed


def panels_of(packed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
    """View a packed weight as [panels, inputs, width]; None if it has another order.

    oneDNN does not specify the order, so each number is compared. It is another one if inputs are
    no multiple of 16. ``packed`` owns the memory and must outlive the result.
    """
    for width in _WIDTHS:
        panels = panels_of_width(packed, weight.shape, width)
        if panels is None:
            continue
        pairs = zip(
            torch.split(panels, _AT_ONCE), torch.split(weight, _AT_ONCE * width), strict=True
        )
        if all(torch.equal(_rows(some)[: len(rows)], rows) for some, rows in pairs):
            return panels
    return None


def panels_of_width(packed: torch.Tensor, shape: torch.Size, width: int) -> torch.Tensor | None:
    """As :func:`panels_of` for one width, without comparing numbers; None if the size differs."""
    outputs, inputs = shape
    count = _ops._nbytes(packed) // 4
    if count != -(-outputs // width) * width * inputs:
        return None
    memory = (ctypes.c_float * count).from_address(_ops.data_ptr(packed))
    return torch.from_numpy(np.ctypeslib.as_array(memory)).view(-1, inputs, width)


def _rows(panels: torch.Tensor) -> torch.Tensor:
    """Copy panels to [outputs, inputs]."""
    return panels.transpose(1, 2).reshape(-1, panels.shape[1])


def trial_operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, weight and bias of a trial product, for :func:`matches_linear`."""
    rows, outputs, inputs = _TRIAL_SHAPE
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, inputs, generator=generator) for n in (outputs, rows))
    return x, weight, torch.randn(outputs, generator=generator)


def matches_linear(
    ours: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> bool:
    """Whether ``ours`` equals torch's own product."""
    plain = F.linear(x, weight, bias)
    return ours.shape == plain.shape and torch.allclose(ours, plain, atol=1e-4)
