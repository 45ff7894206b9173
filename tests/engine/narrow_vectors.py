"""Products of few rows as a processor with AVX2 alone computes them, on any that has AVX2."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own spelling
from llvmlite import binding

narrow = binding.FeatureMap({**binding.get_host_cpu_features(), "avx512f": False})
binding.get_host_cpu_features = lambda: narrow

from experiment.engine.cpu import panel_products as module  # noqa: E402
from experiment.engine.cpu.panels import pack, panels_of  # noqa: E402


@torch.inference_mode()
def check(inputs: int, outputs: int) -> None:
    """Every number of rows, with a bias."""
    drawn = torch.Generator().manual_seed(inputs)
    weight, x = (torch.randn(n, inputs, generator=drawn) for n in (outputs, module.MAX_ROWS))
    bias, packed = torch.randn(outputs, generator=drawn), pack(weight)
    panels = panels_of(packed, weight)
    assert panels is not None
    product = module.PanelProduct(packed, panels, bias, outputs)
    exact = F.linear(x.double(), weight.double(), bias.double()).float()
    whole = product(x)
    for rows in range(1, module.MAX_ROWS + 1):
        ours = product(x[:rows])
        torch.testing.assert_close(ours, exact[:rows], atol=2e-6 * inputs**0.5, rtol=1e-5)
        assert torch.equal(ours, whole[:rows]), rows


if __name__ == "__main__":
    assert module.usable()
    assert module.LANES == 8
    for shape in ((16, 64), (400, 97)):
        check(*shape)
    print("as exact")
