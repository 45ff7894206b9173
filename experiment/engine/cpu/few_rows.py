"""Select the packed layers that use :mod:`experiment.engine.cpu.panel_products` for few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from experiment.engine.attention.kernels import few_rows_module
from experiment.engine.cpu.panels import (
    matches_linear,
    pack,
    panels_of,
    panels_of_width,
    trial_operands,
)

if TYPE_CHECKING:  # Numba is optional
    from experiment.engine.cpu.panel_products import PanelProduct


class PanelProducts:
    """Creates panel products of layers, if they are available and correct on this machine.

    oneDNN's order depends on a weight's shape, so it is verified once per shape.
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
        """Product of a layer with the ``weight`` [outputs, inputs]; None: use oneDNN's.

        ``panels`` are those of the packed weight, if already verified.
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
            return None if width is None else panels_of_width(packed, weight.shape, width)
        panels = panels_of(packed, weight)
        self._widths[weight.shape] = None if panels is None else panels.shape[-1]
        return panels

    @torch.inference_mode()
    def _works(self) -> bool:
        x, weight, bias = trial_operands()
        product = self.product(pack(weight), weight, bias)
        if product is None:
            return False
        try:
            ours = product(x)
        except Exception:  # oneDNN is used instead
            return False
        return matches_linear(ours, x, weight, bias)
