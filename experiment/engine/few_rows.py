"""Which packed layers multiply few rows by :mod:`experiment.engine.panel_products`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from experiment.engine.kernels import few_rows_module
from experiment.engine.packed_layers import PackedLinear
from experiment.engine.panels import is_product, known, pack, panels_if, panels_of

if TYPE_CHECKING:  # it needs Numba, which not everybody has
    from experiment.engine.panel_products import PanelProduct


class FewRows:
    """Hands out a layer's own product where this machine has it and it gives a known one's numbers.

    oneDNN's order is a matter of a weight's shape: each shape is compared once, number by number.
    """

    def __init__(self) -> None:
        self._module: Any = few_rows_module()
        self._readable: dict[torch.Size, bool] = {}
        if self._module is not None and not self._works():
            self._module = None

    def product(
        self, packed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> PanelProduct | None:
        """For a layer whose ``weight`` [outputs, inputs] has been ``packed``; None: oneDNN's."""
        if self._module is None:
            return None
        if weight.shape not in self._readable:
            panels = panels_of(packed, weight)
            width = 0 if panels is None else panels.shape[-1]
            self._readable[weight.shape] = width == self._module.WIDTH
        if not self._readable[weight.shape]:
            return None
        panels = panels_if(packed, weight.shape, self._module.WIDTH)
        return self._module.PanelProduct(packed, panels, bias, len(weight))  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _works(self) -> bool:
        x, weight, bias = known()
        product = self.product(pack(weight), weight, bias)
        if product is None:
            return False
        try:
            ours = product(x, PackedLinear.post)
        except (
            Exception
        ):  # whatever a compiler's code does on this machine, oneDNN's serves as well
            return False
        return is_product(ours, x, weight, bias)
