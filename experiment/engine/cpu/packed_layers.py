"""Layers over weights packed by :mod:`experiment.engine.cpu.packed_weights`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling

if TYPE_CHECKING:  # Numba is optional
    from experiment.engine.cpu.panel_products import PanelProduct

# Fewer rows are padded: oneDNN is slower with one or two than with four (0.45 and 0.35 ms for 768
# to 2,304).
_MIN_ROWS = 4


def _product_of(operations: Any) -> Any:
    """oneDNN's product; if torch lacks it, a function that raises NotImplementedError."""
    try:
        return operations._linear_pointwise.default
    except AttributeError as error:
        why = str(error)

    def missing(*_: Any) -> torch.Tensor:
        raise NotImplementedError(why)

    return missing


_linear = _product_of(torch.ops.mkldnn)


class PackedLinear(torch.nn.Module):
    """A linear layer over a packed weight, for any number of rows.

    Args:
        packed: in oneDNN's order.
        bias: [outputs], or none.
        outputs, inputs: shape of the weight.
        few_rows: replaces oneDNN for few rows.

    Attributes:
        profile_scope: context around products that torch's profiler does not record; None: not
            profiling.
    """

    profile_scope: ClassVar[Callable[[], AbstractContextManager[object]] | None] = None

    def __init__(
        self,
        packed: torch.Tensor,
        bias: torch.Tensor | None,
        outputs: int,
        inputs: int,
        few_rows: PanelProduct | None = None,
    ) -> None:
        super().__init__()
        self.few_rows = few_rows
        self.out_features, self.in_features = outputs, inputs
        # Buffers are included when the model's tensors are counted.
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    @property
    def weight(self) -> torch.Tensor:
        """Placeholder with dtype, device and shape of the weight; its numbers are NaN."""
        shape = self.out_features, self.in_features
        return torch.full((1, 1), float("nan"), dtype=torch.float32).expand(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply [..., inputs]; return [..., outputs]."""
        rows = x.numel() // self.in_features
        if self.few_rows is not None and self.few_rows.takes(rows):
            flat = x.reshape(rows, self.in_features).contiguous()
            return self._few(self.few_rows, flat).view(*x.shape[:-1], self.out_features)
        if rows >= _MIN_ROWS:
            return self._product(x)
        if not rows:
            return x.new_empty((*x.shape[:-1], self.out_features))
        padded = F.pad(x.reshape(rows, self.in_features), (0, 0, 0, _MIN_ROWS - rows))
        return self._product(padded)[:rows].view(*x.shape[:-1], self.out_features)

    def _few(self, product: PanelProduct, x: torch.Tensor) -> torch.Tensor:
        if PackedLinear.profile_scope is None:
            return product(x)
        with PackedLinear.profile_scope():
            return product(x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _linear(x, self.packed, self.bias, "none", [], "")
        return out


class PackedEmbedding(torch.nn.Module):
    """Embedding table tied to a packed output projection.

    Args:
        packed: owner of the memory.
        panels: the same memory, [panels, inputs, width].
        rows: of the table; the last panel is padded.
    """

    def __init__(self, packed: torch.Tensor, panels: torch.Tensor, rows: int) -> None:
        super().__init__()
        self.register_buffer("packed", packed, persistent=False)
        self._panels = panels
        self._rows = rows

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up ids [...]; return [..., inputs].

        Raises:
            IndexError: an id is out of range.
        """
        if ids.numel():
            least, most = (int(end) for end in ids.aminmax())
            if not 0 <= least <= most < self._rows:
                raise IndexError(f"ids from {least} to {most} for a table of {self._rows} rows")
        width = self._panels.shape[-1]
        return self._panels[ids // width, :, ids % width]
