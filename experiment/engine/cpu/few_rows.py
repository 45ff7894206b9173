"""Which packed layers multiply few rows by :mod:`experiment.engine.cpu.panel_products`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from experiment.engine.attention.kernels import few_rows_module
from experiment.engine.cpu.panels import is_product, known, pack, panels_if, panels_of

if TYPE_CHECKING:  # it needs Numba, which not everybody has
    from experiment.engine.cpu.panel_products import PanelProduct


class FewRows:
    """Hands out a layer's own product where this machine has it and it gives a known one's numbers.

    oneDNN's order is a matter of a weight's shape: each shape is compared once, number by number.
    """

    def __init__(self) -> None:
        self._module: Any = few_rows_module()
        self._widths: dict[torch.Size, int | None] = {}
        if self._module is not None and not self._works():
            self._module = None

    def product(
        self,
        packed: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        panels: torch.Tensor | None = None,
    ) -> PanelProduct | None:
        """For a layer whose ``weight`` [outputs, inputs] has been ``packed``; None: oneDNN's.

        ``panels`` are those of the weight, where they have been compared with it already.
        """
        if self._module is None:
            return None
        if panels is None:
            panels = self._panels(packed, weight)
        if panels is None or not self._module.fits(panels):
            return None
        return self._module.PanelProduct(packed, panels, bias, len(weight))  # type: ignore[no-any-return]

    def _panels(self, packed: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | None:
        if weight.shape in self._widths:
            width = self._widths[weight.shape]
            return None if width is None else panels_if(packed, weight.shape, width)
        panels = panels_of(packed, weight)
        self._widths[weight.shape] = None if panels is None else panels.shape[-1]
        return panels

    @torch.inference_mode()
    def _works(self) -> bool:
        x, weight, bias = known()
        product = self.product(pack(weight), weight, bias)
        if product is None:
            return False
        try:
            ours = product(x)
        except Exception:  # whatever it is, oneDNN's serves as well
            return False
        return is_product(ours, x, weight, bias)
